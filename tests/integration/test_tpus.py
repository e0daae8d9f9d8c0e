"""TPUs on the real engine: what changes in place, what is recreated, what is imported."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from tests.patience import PATIENCE
from tpustack.commands import recovery
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand
from tpustack.project import root

from .imports import TPU_NODES, carry_out, documented, enable

Deploy = Callable[..., Stack]
Pulumi = Callable[..., "subprocess.Popen[str]"]
POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
PROJECT = "projects/tpu-stack-local"
NODES = f"https://tpu.googleapis.com/v2alpha1/{PROJECT}/locations/us-central1-b/nodes"
CLASSIC = NODES.replace("v2alpha1", "v1")
DISKS = f"https://compute.googleapis.com/compute/v1/{PROJECT}/zones/us-central1-b/disks"
PAGE = (root() / "docs" / "tpu-types.md").read_text(encoding="utf-8")


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def said(run: subprocess.Popen[str]) -> str:
    """What a command wrote that succeeded."""
    output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, output
    return output


def ids(google: requests.Session, nodes: str = NODES) -> dict[str, str]:
    """The TPUs that are there, each with the number that another one would not have."""
    found = google.get(nodes).json().get("nodes", [])
    return {node["name"].rpartition("/")[2]: node.get("id") or node["createTime"] for node in found}


def test_slices_grow_and_their_disks_labels_and_tags_change_in_place(
    deploy: Deploy, cloud: LocalCloudCommand, google: requests.Session, pulumi: Pulumi
) -> None:
    before = cloud.status()["resources"]
    options = {"secureBoot": True, "timeouts": {"createMinutes": 30, "deleteMinutes": 30}}
    disk = {"name": "scratch", "sizeGib": 20}
    engine = deploy(tpu={**POD, **options, "slices": 2, "tags": ["a"], "dataDisks": [disk]})
    engine.up(ignore)
    outputs = engine.outputs()
    assert outputs["tpu_names"] == ["tpu-stack-local-tpu-0", "tpu-stack-local-tpu-1"]
    assert len(set(outputs["tpu_endpoints"])) == 2
    # It fails when the network that the engine made lets none through.
    for reached in (outputs["tpu_endpoints"][1], "tpu-stack-local-tpu-1/0:8471"):
        for source in (outputs["vm_name"], "tpu-stack-local-tpu-0"):
            assert "by rule tpu-stack-local-net-machines" in cloud.run("reach", source, reached)
    two = ids(google)

    more = {"slices": 3, "tags": ["a", "b"], "dataDisks": [{**disk, "sizeGib": 30}]}
    deploy(tpu={**POD, **options, **more}, labels={"team": "vision"})
    changes = engine.up(ignore).changes
    assert "replace" not in changes
    assert changes["create"] == 2  # The third slice and its disk.
    three = ids(google)
    assert two.items() <= three.items()
    assert {node["labels"]["team"] for node in google.get(NODES).json()["nodes"]} == {"vision"}
    assert {item["sizeGb"] for item in google.get(DISKS).json()["items"]} >= {"30"}
    assert engine.up(ignore).changed == 0

    cloud.run("faults", "preempt", "tpu-stack-local-tpu-1")
    engine.renew(recovery.tpu_urns(engine.resources()), ignore)
    again = ids(google)
    assert {name for name in three if three[name] != again[name]} == {"tpu-stack-local-tpu-1"}
    assert engine.up(ignore).changed == 0

    deploy(tpu={**POD, **options, **more, **replacing("TPU VM")}, labels={"team": "vision"})
    assert reasons(pulumi, "tpu/v2Vm") == {
        "acceleratorType",
        "runtimeVersion",
        "schedulingConfig",
        "shieldedInstanceConfig",
        "serviceAccount",
        "networkConfig",
    }
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before


def replacing(form: str) -> dict[str, Any]:
    """Another value of every setting that the page says replaces a TPU of that form."""
    heading, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.partition("## What a change does")[2].partition("\n## ")[0].splitlines()
        if line.startswith("| ") and "runOn" not in line
    ]
    column = heading.index(form)
    values = {
        "tpu.runtimeVersion": "tpu-vm-tf-2.17.1-pjrt",
        "tpu.acceleratorType": "v3-8",
        "tpu.capacity": "preemptible",
        "tpu.secureBoot": False,
        "tpu.scopes": ["https://www.googleapis.com/auth/logging.write"],
        "tpu.externalIps": True,
        "tpu.cidrBlock": "172.16.2.0/29",
    }
    names = [name.strip("`") for name, *cells in rows if cells[column - 1] == "replaced"]
    return {name.removeprefix("tpu."): values[name] for name in names}


def reasons(pulumi: Pulumi, kind: str, stack: str = "local") -> set[str]:
    """Why a preview replaces resources of a kind."""
    steps = json.loads(said(pulumi("preview", "--json", stack=stack)))["steps"]
    ours = [step for step in steps if f":{kind}:" in step["urn"]]
    assert ours
    assert {step["op"] for step in ours} <= {"replace", "create-replacement", "delete-replaced"}
    return {
        re.split(r"[.\[]", reason)[0] for step in ours for reason in step.get("replaceReasons", ())
    }


def test_a_node_that_is_there_already_is_imported_and_another_version_is_installed_on_it(
    deploy: Deploy,
    google: requests.Session,
    project: Path,
    pulumi: Pulumi,
    cloud: LocalCloudCommand,
) -> None:
    enable(google, "tpu")
    cloud.run("faults", "set", "deny-tpu-nodes", '{"on": false}')
    node = {
        "acceleratorType": "v2-8",
        "tensorflowVersion": "2.12.1",
        "network": f"{PROJECT}/global/networks/default",
        "cidrBlock": "172.16.1.0/29",
        "labels": {"team": "audio"},
    }
    name = "tpu-stack-local-node-tpu"
    google.post(CLASSIC, json=node, params={"nodeId": name}).raise_for_status()
    made = ids(google, CLASSIC)
    tpu = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1", "cidrBlock": "172.16.1.0/29"}
    engine = deploy("local-node", tpu=tpu, network={"create": False})
    carry_out(pulumi, project, documented(TPU_NODES, "local-node"), "local-node")
    assert "replace" not in engine.up(ignore).changes

    other = {**tpu, "tensorflowVersion": "2.12.0"}
    deploy("local-node", tpu=other, network={"create": False}, labels={"team": "vision"})
    changes = engine.up(ignore).changes
    assert "replace" not in changes
    there = google.get(f"{CLASSIC}/{name}").json()
    assert (there["tensorflowVersion"], there["labels"]) == ("2.12.0", {"team": "audio"})
    assert ids(google, CLASSIC) == made

    changed = {**other, **replacing("TPU Node")}
    deploy("local-node", tpu=changed, network={"create": False}, labels={"team": "vision"})
    assert reasons(pulumi, "tpu/node", "local-node") == {
        "acceleratorType",
        "cidrBlock",
        "schedulingConfig",
    }
    engine.destroy(ignore)
