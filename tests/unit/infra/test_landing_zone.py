"""A stack that uses accounts, grants and firewall rules of others, or has no VM."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from pulumi.runtime.mocks import MockMonitor

from tpu_infra.catalog import Catalog
from tpu_infra.cost import of_stack
from tpu_infra.grants import commands
from tpu_infra.names import names_of, project_of
from tpu_infra.settings.parse import parse

from .conftest import NEEDS_NODES, Run, config

EMAIL = "tpu@hub-project.iam.gserviceaccount.com"
JOBS = "jobs@hub-project.iam.gserviceaccount.com"
VERTEX = "vertex@hub-project.iam.gserviceaccount.com"
KEY = "projects/hub-project/locations/us-central1/keyRings/r/cryptoKeys/k"
ALONE = {"vm": {"create": False}, "training": {"runOn": "tpu"}}
# On what, which role, to whom, and when: title, description and expression.
Given = set[tuple[str, str, str, tuple[str, ...]]]
EVERYTHING: dict[str, Any] = {
    "serviceAccount": EMAIL,
    "jobs": {
        "enabled": True,
        "serviceAccount": JOBS,
        "vertex": {"serviceAccount": VERTEX, "submitters": ["user:me@example.com"]},
    },
    "limits": {"role": "tpu_stack_limits"},
    "recovery": {"enabled": True},
    "vm": {"opsAgent": True},
}


def test_machines_act_as_an_existing_account_and_the_stack_makes_none(run: Run) -> None:
    engine, outputs = run(config(serviceAccount=EMAIL))
    assert engine.of("Account") == []
    assert engine.one("V2Vm")["serviceAccount"]["email"] == EMAIL
    assert engine.one("Instance")["serviceAccount"]["email"] == EMAIL
    assert {one.inputs["member"] for one in engine.of("IAMMember")} == {f"serviceAccount:{EMAIL}"}
    assert outputs["service_account"] == EMAIL
    assert outputs["jobs_service_account"] == ""


def test_jobs_and_vertex_ai_run_as_existing_accounts(run: Run) -> None:
    engine, outputs = run(config(**EVERYTHING))
    assert engine.of("Account") == []
    assert engine.one("V2Vm")["serviceAccount"]["email"] == JOBS
    assert engine.one("Instance")["metadata"]["training-jobs"] == JOBS
    assert outputs["jobs_service_account"] == JOBS
    assert engine.dynamic("CustomJobs")["account"] == VERTEX


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"serviceAccount": EMAIL},
        EVERYTHING,
        {**EVERYTHING, "jobs": {"enabled": True, "asRoot": True}},
        {"recovery": {"enabled": True}, "limits": {"role": "tpu_stack_limits"}},
    ],
)
def test_the_commands_for_an_administrator_grant_what_the_stack_would(
    run: Run, settings: dict[str, Any]
) -> None:
    engine, _ = run(config(**settings))
    declared: Given = set()
    for one in engine.resources:
        if one.kind.lower().endswith("iammember"):
            inputs = one.inputs
            where = inputs.get("bucket") or inputs.get("serviceAccountId") or inputs["project"]
            only = inputs.get("condition", {})
            only = tuple(only[key] for key in ("title", "description", "expression") if key in only)
            declared.add((where.rpartition("/")[2], inputs["role"], inputs["member"], only))
    elsewhere = parse(config(**settings, grantRoles=False), "test")
    assert {read(command) for command in commands(elsewhere, names_of(elsewhere, "test"))} == (
        declared
    )


def read(command: str) -> tuple[str, str, str, tuple[str, ...]]:
    """What a command grants."""
    words = shlex.split(command)
    flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    target = words[words.index("add-iam-policy-binding") + 1].removeprefix("gs://")
    parts = re.split(r"(?:^|,)(?:title|description|expression)=", flags["condition"])
    only = tuple(parts[1:])
    if "service-accounts" in words:
        assert flags["project"] == project_of(target)
    return target, flags["role"], flags["member"], only


def test_a_stack_whose_grants_are_made_elsewhere_declares_none_and_lists_them(run: Run) -> None:
    settings = {**EVERYTHING, "bucket": {"encryption": {"key": KEY}}, "grantRoles": False}
    engine, outputs = run(config(**settings), preview=True)
    kinds = [one.kind.lower() for one in engine.resources]
    assert not [kind for kind in kinds if "iam" in kind]
    assert outputs["bucket_key"] == KEY
    (said,) = (each for each in engine.warnings if each.startswith("grantRoles"))
    assert "--role=roles/iam.serviceAccountTokenCreator" in said
    assert f"gcloud storage service-agent --project=some-project --authorize-cmek {KEY}" in said


@pytest.fixture
def kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], set[str]]:
    """The grants that outlive a stack with these settings, by what they are granted to."""
    stays: dict[str, bool] = {}
    register: Callable[[MockMonitor, Any], Any] = MockMonitor.RegisterResource

    def seen(monitor: MockMonitor, request: Any) -> Any:
        stays[request.name] = request.retainOnDelete
        return register(monitor, request)

    monkeypatch.setattr(MockMonitor, "RegisterResource", seen)

    def of(settings: dict[str, Any]) -> set[str]:
        engine, _ = run(config(**settings))
        granted = [one for one in engine.resources if one.kind.lower().endswith("iammember")]
        return {f"{one.name}: {one.inputs['member']}" for one in granted if stays[one.name]}

    return of


Kept = Callable[[dict[str, Any]], set[str]]
ADA = "user:ada@example.com"


def test_grants_of_an_account_that_others_share_stay_and_those_of_the_stacks_own_go(
    kept: Kept,
) -> None:
    names = ("storage.objectUser", "storage.legacyBucketReader", "tpu.viewer", "logging.logWriter")
    assert kept({"serviceAccount": EMAIL, "jobs": {"enabled": True}}) == {
        f"{name}: serviceAccount:{EMAIL}" for name in names
    }
    assert kept({"jobs": {"enabled": True}}) == set()


def test_a_person_keeps_a_role_in_the_project_and_not_one_on_the_stacks_own_account(
    kept: Kept,
) -> None:
    vertex: dict[str, Any] = {"submitters": [ADA]}
    assert kept({"jobs": {"vertex": vertex}}) == {f"user-{ADA}: {ADA}"}
    shared = kept({"jobs": {"vertex": {**vertex, "serviceAccount": VERTEX}}})
    assert {f"user-{ADA}: {ADA}", f"acts-as-{ADA}: {ADA}"} <= shared


@NEEDS_NODES
@pytest.mark.parametrize("create", [True, False])
def test_googles_account_of_all_tpu_nodes_keeps_a_bucket_that_is_not_the_stacks(
    kept: Kept, create: bool
) -> None:
    node = {
        "architecture": "node",
        "tpu": {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"},
    }
    stays = kept({**node, "bucket": {"create": create, "name": "a-bucket"}})
    assert {each.partition(":")[0] for each in stays} == (
        set() if create else {"tpu-objectUser", "tpu-legacyBucketReader"}
    )


def test_tags_of_the_network_are_on_every_machine(run: Run) -> None:
    tags = {"network": {"tags": ["egress"]}}
    engine, _ = run(config(**tags))
    own = "tpu-stack-test-net"
    assert engine.one("Instance")["tags"] == [own, "egress"]
    assert engine.one("V2Vm")["tags"] == [own, "egress"]
    engine, _ = run(config(**tags, vm={"instanceGroup": {}}))
    assert engine.one("InstanceTemplate")["tags"] == [own, "egress"]


def test_a_stack_without_a_vm_is_the_tpu_alone_and_pays_for_no_vm(run: Run) -> None:
    engine, outputs = run(config(**ALONE))
    assert engine.of("Instance") == []
    assert len(engine.of("V2Vm")) == 1
    assert outputs["vm_name"] == outputs["vm_address"] == ""
    cost = of_stack(parse(config(**ALONE), "test"), "test", Catalog())
    assert [line.part for line in cost.lines] == ["TPU", "Bucket", "NAT"]
    assert not [note for note in cost.notes if note.startswith("VM")]


@pytest.mark.parametrize("project", ["my-project", "example.com:mine"])
def test_an_address_tells_the_project_of_its_account(project: str) -> None:
    settings = parse({**config(), "gcp:project": project}, "test")
    assert project_of(names_of(settings, "test").email) == project
