"""A stack among what its organization has made, by a deployer who may make no identity."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcloud.testing import Session
from tpu_infra.deployer import READ, WRITE, permissions_of
from tpu_infra.grants import commands
from tpu_infra.names import names_of
from tpu_infra.settings.parse import parse
from tpustack.engine.backend import Backend
from tpustack.local import LocalCloudCommand
from tpustack.project import root

from .deployer import Deployer

PAGE = (root() / "docs" / "landing-zone.md").read_text(encoding="utf-8")
PROJECT = "projects/tpu-stack-local"
COMPUTE = f"https://compute.googleapis.com/compute/v1/{PROJECT}"
# What organizations keep to themselves.
FORBIDDEN = re.compile(r".*\.setIamPolicy|iam\.(serviceAccounts|roles)\.(create|delete|update)")
MANAGERS = {
    "projects": ("https://cloudresourcemanager.googleapis.com/v1/projects/{}", "POST"),
    "buckets": ("https://storage.googleapis.com/storage/v1/b/{}", "PUT"),
}


def block(language: str) -> str:
    """The page's one block in a language."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def page_commands() -> list[str]:
    """The page's commands, a line each."""
    lines = block("sh").replace("\\\n", "").splitlines()
    return [" ".join(line.split()) for line in lines]


def post(google: Session, url: str, body: dict[str, Any], **query: str) -> None:
    answer = google.post(url, json=body, params=query, timeout=30)
    assert answer.ok, answer.text


def run(google: Session, command: str) -> None:
    """Grant what a command of gcloud grants."""
    words = shlex.split(command)
    flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    (kind,) = (each for each in MANAGERS if each in words)
    target = words[words.index("add-iam-policy-binding") + 1].removeprefix("gs://")
    (url, method), binding = MANAGERS[kind], {"role": flags["role"], "members": [flags["member"]]}
    url = url.format(target)
    if method == "PUT":
        policy = google.get(f"{url}/iam", timeout=30).json()
        policy["bindings"].append(binding)
        answer = google.put(f"{url}/iam", json=policy, timeout=30)
        assert answer.ok, answer.text
        return
    policy = google.post(f"{url}:getIamPolicy", json={}, timeout=30).json()
    policy["bindings"].append(binding)
    post(google, f"{url}:setIamPolicy", {"policy": policy})


@pytest.fixture
def landing(google: Session, cloud: LocalCloudCommand) -> dict[str, Any]:
    """The page's stack file, in a project that has all that the file names."""
    config: dict[str, Any] = yaml.safe_load(block("yaml"))["config"]
    region = config["tpu-stack:zone"].rpartition("-")[0]
    apis = [f"{each}.googleapis.com" for each in ("tpu", "compute", "storage", "iam")]
    apis.append("cloudresourcemanager.googleapis.com")
    usage = f"https://serviceusage.googleapis.com/v1/{PROJECT}/services:batchEnable"
    post(google, usage, {"serviceIds": apis})
    name = config["tpu-stack:serviceAccount"].partition("@")[0]
    accounts = f"https://iam.googleapis.com/v1/{PROJECT}/serviceAccounts"
    post(google, accounts, {"accountId": name})
    network = {"name": "landing", "autoCreateSubnetworks": False}
    post(google, f"{COMPUTE}/global/networks", network)
    subnet = {"name": "landing-tpus", "network": f"{PROJECT}/global/networks/landing"}
    subnets = f"{COMPUTE}/regions/{region}/subnetworks"
    post(google, subnets, {**subnet, "ipCidrRange": "10.3.0.0/24", "privateIpGoogleAccess": True})
    bucket = {"name": config["tpu-stack:bucket"]["name"], "location": region.upper()}
    bucket["iamConfiguration"] = {"uniformBucketLevelAccess": {"enabled": True}}
    buckets = "https://storage.googleapis.com/storage/v1/b"
    post(google, buckets, bucket, project="tpu-stack-local")
    for command in page_commands():
        run(google, command)
    return config


HOST = {
    "architecture": "compute",
    "tpu": {"acceleratorType": "ct6e-standard-4t"},
    "vm": {},
    "zone": "us-central1-b",
}


@pytest.mark.parametrize("changes", [{}, HOST], ids=["vm", "compute"])
def test_a_deployer_without_any_right_to_grant_makes_the_tpu_of_the_page_and_nothing_else(
    landing: dict[str, Any],
    deployer: Callable[..., Deployer],
    cloud: LocalCloudCommand,
    project: Path,
    trainer: Path,
    environment: dict[str, str],
    changes: dict[str, Any],
) -> None:
    config = landing | {f"tpu-stack:{key}": value for key, value in changes.items()}
    settings = parse(config, "landing")
    wanted = commands(settings, names_of(settings, "landing"))
    if not changes:
        assert wanted == page_commands()
    permissions = permissions_of(settings)
    assert not [name for name in permissions.of_project() if FORBIDDEN.fullmatch(name)]
    account = deployer(permissions)
    before = cloud.status()["resources"]
    # The trainer's wheel is the one thing that the page leaves out: it is built.
    config["tpu-stack:training"] = config["tpu-stack:training"] | {"wheel": str(trainer)}
    path = project / "stacks" / "Pulumi.landing.yaml"
    path.write_text(yaml.safe_dump({"config": config}), encoding="utf-8")
    engine = Backend(environment, project).select("landing")
    engine.up(lambda line: None)
    outputs = engine.outputs()
    made = {each["type"] for each in engine.resources() if each["type"].startswith("gcp:")}
    machine = "gcp:compute/instance:Instance" if changes else "gcp:tpu/v2Vm:V2Vm"
    assert made == {"gcp:storage/bucketObject:BucketObject", machine}
    assert outputs["service_account"] == config["tpu-stack:serviceAccount"]
    assert outputs["tpu_name"] == "vision-landing-tpu-ml"
    assert outputs["network"].endswith("/global/networks/landing")
    assert outputs["subnetwork"].endswith("/subnetworks/landing-tpus")
    assert outputs["vm_name"] == (outputs["tpu_name"] if changes else "")
    assert engine.up(lambda line: None).changed == 0
    engine.destroy(lambda line: None)
    assert account.asked() == permissions.of_project(READ, WRITE)
    # What is in a bucket of theirs stays.
    assert {**cloud.status()["resources"], "objects": 0} == {**before, "objects": 0}
