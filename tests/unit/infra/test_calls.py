"""What the generated stacks ask of Google is what the program declares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tpu_infra.checks import find_problems
from tpu_infra.names import MARK
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import SettingsError
from tpu_infra.settings.parse import parse

from .calls import ANY_MARK, Call
from .conftest import NEEDS_NODES, Declared, Engine, Run, context_of
from .generate import stack
from .machine_calls import calls

Json = dict[str, Any]
FORMS: dict[str, Callable[[StackSettings], object]] = {
    "a classic node": lambda s: s.architecture == "node",
    "TPU VMs": lambda s: s.architecture == "vm" and not s.tpu.queue,
    "out of the queue": lambda s: s.tpu.queue is not None,
    "data disks": lambda s: s.tpu.data_disks,
    "an instance group": lambda s: s.vm.instance_group is not None,
    "a boot disk that stays": lambda s: s.vm.keep_boot_disk,
    "a key": lambda s: s.bucket.encryption is not None,
    "a lifecycle": lambda s: s.bucket.lifecycle,
    "a budget": lambda s: s.budget is not None,
}


@NEEDS_NODES
def test_what_google_is_asked_is_what_the_program_declares(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_infra.checks.mark_of", lambda stack: ANY_MARK)
    seen: set[str] = set()
    seeds = iter(range(1000))
    while seen != FORMS.keys():
        seed = next(seeds)
        config = stack(Random(seed))
        settings = accepted(config, root)
        forms = [name for name, has in FORMS.items() if settings and has(settings)]
        # The program takes its time: no form is run for itself twice.
        if settings is None or settings.tpu.slices > 2 or seen.issuperset(forms):
            continue
        engine, _ = run(config)
        compare(engine, Asked(list(calls(settings, context_of(settings, root)))), settings)
        seen.update(forms)


def accepted(config: Json, root: Path) -> StackSettings | None:
    try:
        settings = parse(config, "test")
    except SettingsError:
        return None
    return None if find_problems(settings, context_of(settings, root)) else settings


class Asked:
    """Bodies by the collection that they are sent to."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = [(path.rpartition("/")[2], body) for _, path, _, body in calls]

    def all(self, collection: str) -> list[Json]:
        return [body for name, body in self._calls if name == collection]

    def one(self, collection: str) -> Json:
        (body,) = self.all(collection)
        return body


def compare(engine: Engine, asked: Asked, settings: StackSettings) -> None:
    account = engine.one("Account")
    assert account["accountId"] == asked.one("serviceAccounts")["accountId"]
    ranges = [subnetwork.inputs["ipCidrRange"] for subnetwork in engine.of("Subnetwork")]
    assert ranges == [body["ipCidrRange"] for body in asked.all("subnetworks")]
    _compare_bucket(engine, asked)
    _compare_budget(engine, asked)
    _compare_disks(engine, asked, settings)
    _compare_vm(engine, asked)
    # Of several slices only some are asked for.
    for declared in [*engine.of("V2Vm"), *engine.of("Node")][-1:]:
        _compare_tpu(declared, asked.all("nodes")[-1])
    for request in asked.all("queuedResources"):
        entry = engine.dynamic("QueuedResource")
        assert request.pop("queueingPolicy", {}) == entry["queueing"]
        ours, theirs = (_bare(one["tpu"]["nodeSpec"]) for one in (request, entry["request"]))
        assert ours == theirs
        assert {**request, "tpu": 0} == {**entry["request"], "tpu": 0}


def _compare_bucket(engine: Engine, asked: Asked) -> None:
    bucket, body = engine.one("Bucket"), asked.one("b")
    assert bucket["name"] == body["name"]
    assert bucket["versioning"] == body["versioning"]
    assert ("encryption" in bucket) == ("encryption" in body)
    same = {
        "age": "age",
        "daysSinceNoncurrentTime": "daysSinceNoncurrentTime",
        "numNewerVersions": "numNewerVersions",
        "matchesPrefixes": "matchesPrefix",
    }
    declared = [
        {
            "action": rule["action"],
            **{same[k]: v for k, v in rule["condition"].items() if k in same},
        }
        for rule in bucket.get("lifecycleRules", [])
    ]
    ours = [
        {"action": rule["action"], **{k: v for k, v in rule["condition"].items() if k != "isLive"}}
        for rule in body["lifecycle"]["rule"]
    ]
    assert ours == declared


def _compare_budget(engine: Engine, asked: Asked) -> None:
    for budget, body in zip(engine.of("Budget"), asked.all("budgets"), strict=True):
        assert budget.inputs["amount"] == body["amount"]
        declared = sorted(map(repr, budget.inputs["thresholdRules"]))
        assert len(declared) == len(body["thresholdRules"])
    emails = [channel.inputs["labels"] for channel in engine.of("NotificationChannel")]
    assert emails == [body["labels"] for body in asked.all("notificationChannels")]


def _compare_disks(engine: Engine, asked: Asked, settings: StackSettings) -> None:
    names = {"name", "type", "sizeGb", "sourceSnapshot", "accessMode"}
    bodies = [body for body in asked.all("disks") if body["name"] != "corpus"]
    declared = engine.of("Disk")
    assert len(declared) == len(bodies)
    for disk, body in zip(declared, bodies, strict=True):
        same = {
            "type": disk.inputs["type"],
            "sizeGb": str(disk.inputs["size"]) if "size" in disk.inputs else None,
            "sourceSnapshot": disk.inputs.get("snapshot"),
            "accessMode": disk.inputs.get("accessMode"),
        }
        assert len(disk.inputs["name"]) == len(body["name"])
        assert {k: v for k, v in same.items() if v} == {
            k: v.rpartition("/")[2] if k == "type" else v
            for k, v in body.items()
            if k in names - {"name"}
        }


def _compare_vm(engine: Engine, asked: Asked) -> None:
    template = engine.of("InstanceTemplate")
    if template:
        vm, declared = asked.one("instanceTemplates")["properties"], template[0].inputs
        for check, health in zip(asked.all("healthChecks"), engine.of("HealthCheck"), strict=True):
            same = ("checkIntervalSec", "timeoutSec", "unhealthyThreshold")
            assert {key: check[key] for key in same} == {key: health.inputs[key] for key in same}
        group = asked.one("instanceGroupManagers")
        healing = engine.one("InstanceGroupManager").get("autoHealingPolicies")
        assert [one["initialDelaySec"] for one in group["autoHealingPolicies"]] == (
            [healing["initialDelaySec"]] if healing else []
        )
    else:
        vm, declared = asked.one("instances"), engine.one("Instance")
    assert vm["machineType"].rpartition("/")[2] == declared["machineType"]
    assert vm["scheduling"] == declared["scheduling"]
    assert vm["shieldedInstanceConfig"] == declared["shieldedInstanceConfig"]
    # The mark's value is that of who runs the tests; that there is one is what Google judges.
    assert {**vm["labels"], MARK: ""}.items() >= {**declared["labels"], MARK: ""}.items()
    (interface,) = vm["networkInterfaces"]
    assert len(interface["accessConfigs"]) == len(declared["networkInterfaces"][0]["accessConfigs"])


def _compare_tpu(declared: Declared, body: Json) -> None:
    same = (
        *("acceleratorType", "runtimeVersion", "tensorflowVersion", "cidrBlock", "tags"),
        *("shieldedInstanceConfig", "schedulingConfig"),
    )
    ours = {key: body.get(key) or None for key in same}
    assert ours == {key: declared.inputs.get(key) for key in same}
    modes = [disk["mode"] for disk in declared.inputs.get("dataDisks", [])]
    assert modes == [disk["mode"] for disk in body.get("dataDisks", [])]


def _bare(specs: list[Json]) -> list[Json]:
    """Without what the record of calls has no real values for: network, account, disks' names."""
    node = dict(specs[0]["node"])
    for name in ("networkConfig", "serviceAccount", "labels", "metadata"):
        node.pop(name, None)
    modes = [disk["mode"] for disk in node.pop("dataDisks", [])]
    return [{**specs[0], "node": node, "modes": modes}]
