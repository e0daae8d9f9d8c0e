"""What the program makes can be found again by its inputs."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpustack.project import root
from tpustack.recovery import ids

# Google names the first three itself. An API stays enabled, as does the account that it acts as,
# and the last two make nothing.
NOT_FOUND = {
    "gcp:billing/budget:Budget",
    "gcp:monitoring/alertPolicy:AlertPolicy",
    "gcp:monitoring/notificationChannel:NotificationChannel",
    "gcp:projects/service:Service",
    "gcp:projects/serviceIdentity:ServiceIdentity",
    "pulumi-python:dynamic/tpu:QueuedNode",
    "pulumi-python:dynamic/vertex:ManagedJobs",
}


def resources() -> Iterator[dict[str, Any]]:
    """What the engine and the provider made of three kinds of stack."""
    for file in (Path(__file__).parent / "states").glob("*.json.gz"):
        made = json.loads(gzip.decompress(file.read_bytes()))
        for each in made["deployment"]["resources"]:
            if each.get("custom") and not each["type"].startswith("pulumi:"):
                yield each


def declared(path: Path) -> Iterator[str]:
    """The type tokens of what a program's file declares.

    Most are declared without the SDK's classes; see infra/components/resource.py.
    """
    text = path.read_text(encoding="utf-8")
    own = r"(?<!\.)\b(?:gcp\.(\w+)|(compute|projects|storage))\.([A-Z]\w+)\("
    for named, module, kind in re.findall(own, text):
        if not kind.endswith("Args"):
            yield f"gcp:{named or module}/{kind[0].lower()}{kind[1:]}:{kind}"


def test_the_inputs_tell_the_id_that_the_provider_has_given() -> None:
    found = [each for each in resources() if each["type"] not in NOT_FOUND]
    assert len({each["type"] for each in found}) > 10
    assert [ids.id_of(each) for each in found] == [each["id"] for each in found]


def test_every_resource_of_our_programs_can_be_found_or_is_known_not_to_be() -> None:
    files = [file for room in ("infra", "bootstrap") for file in (root() / room).rglob("*.py")]
    types = {kind for file in files for kind in declared(file)}
    assert len(types) > 20
    assert types - ids.FOUND == NOT_FOUND & types


def test_an_account_of_a_domains_project_has_the_domain_behind_it() -> None:
    inputs = {"accountId": "machines", "project": "example.com:p"}
    assert ids.id_of({"type": "gcp:serviceaccount/account:Account", "inputs": inputs}) == (
        "projects/example.com:p/serviceAccounts/machines@p.example.com.iam.gserviceaccount.com"
    )


def test_without_its_inputs_nothing_is_found() -> None:
    assert ids.id_of({"type": "gcp:tpu/v2Vm:V2Vm", "inputs": {"name": "t"}}) is None
