"""The files that docs/repair.md has for importing what exists already, carried out."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from tests.patience import PATIENCE
from tpustack.project import root

Pulumi = Callable[..., "subprocess.Popen[str]"]
PROJECT = "tpu-stack-local"
BUCKET = f"{PROJECT}-tpu-stack-local"
SERVICES = f"https://serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
# In the order of the page.
BUCKETS, VMS, TPU_VMS, TPU_NODES = range(4)


def documented(number: int, stack: str = "local") -> list[dict[str, Any]]:
    """The resources in one of the files on the page, as a stack's user would name them."""
    text = (root() / "docs" / "repair.md").read_text(encoding="utf-8")
    block: str = re.findall(r"```json\n(.*?)```", text, re.DOTALL)[number]
    for name, value in (
        ("NAMEPREFIX", f"tpu-stack-{stack}"),
        ("PROJECT", PROJECT),
        ("ZONE", "us-central1-b"),
        ("BUCKET", BUCKET),
    ):
        block = block.replace(name, value)
    found: list[dict[str, Any]] = json.loads(block)["resources"]
    # Names are for the file alone where a logical name stands next to them: several files are one.
    for resource in found:
        for key in ("name", "parent"):
            if resource.get(key) == "component":
                resource[key] = f"component-{number}"
    return found


def carry_out(
    pulumi: Pulumi, project: Path, resources: list[dict[str, Any]], stack: str = "local"
) -> None:
    """`pulumi import` of a file with these resources."""
    (project / "import.json").write_text(json.dumps({"resources": resources}), encoding="utf-8")
    options = ("--yes", "--generate-code=false", "--protect=false", "--skip-preview")
    run = pulumi("import", "--file=import.json", *options, "--non-interactive", stack=stack)
    said, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said


def enable(google: requests.Session, *apis: str) -> None:
    """Enables APIs, by their short names."""
    for api in apis:
        google.post(f"{SERVICES}/{api}.googleapis.com:enable", json={}).raise_for_status()
