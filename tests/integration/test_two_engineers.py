"""Two engineers with stacks of the same name, in one project, each with a backend of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.sandbox import write_stack
from tpu_infra.deployer import permissions_of
from tpu_infra.settings.parse import parse
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Stack
from tpustack.engine.toolchain import Toolchain
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand

from .deployer import Deployer

PROJECT = "projects/tpu-stack-local"
IAM = f"https://iam.googleapis.com/v1/{PROJECT}"
BUCKET = "https://storage.googleapis.com/storage/v1/b/tpu-stack-local-tpu-stack-local"
POLICIES = (
    ("POST", f"https://cloudresourcemanager.googleapis.com/v1/{PROJECT}:getIamPolicy"),
    ("GET", f"{BUCKET}/iam"),
)
BASE = {
    "gcp:project": "tpu-stack-local",
    "tpu-stack:zone": "us-central1-b",
    "tpu-stack:tpu": {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"},
    "tpu-stack:bucket": {"forceDestroy": True},
}
SETTINGS = {"limits": {"timeToLiveHours": 8}}


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


def everything(google: requests.Session, cloud: LocalCloudCommand) -> tuple[Any, ...]:
    """What the project holds, but for objects: the agent of a machine adds its own at any time."""
    resources = cloud.status()["resources"]
    del resources["objects"]
    answers = [google.request(method, url) for method, url in POLICIES]
    return resources, [answer.json()["bindings"] for answer in answers]


def objects(google: requests.Session) -> set[str]:
    """The names of the objects in the first one's bucket."""
    return {found["name"] for found in google.get(f"{BUCKET}/o").json()["items"]}


def test_of_two_stacks_of_one_name_the_second_takes_and_deletes_nothing_of_the_first(
    deploy: Callable[..., Stack],
    google: requests.Session,
    cloud: LocalCloudCommand,
    tools: Toolchain,
    tmp_path: Path,
    project: Path,
    trainer: Path,
) -> None:
    ada = deploy(**SETTINGS)
    ada.up(ignore)
    before, stored = everything(google, cloud), objects(google)
    elsewhere = toolchain.environment(tools, tmp_path / "graces") | cloud.environment()
    grace = Backend(elsewhere, project).select("local")
    with pytest.raises(TpustackError) as failed:
        grace.up(ignore)
    assert "Service account tpu-stack-local-sa already exists" in str(failed.value)
    grace.destroy(ignore)
    assert everything(google, cloud) == before
    assert ada.up(ignore).changed == 0
    # With an owner, names differ; and grace may do no more than what a stack is said to take.
    write_stack(project, trainer, "local", **SETTINGS, owner="grace")
    settings = parse({**BASE, "tpu-stack:limits": SETTINGS["limits"]}, "local")
    account = Deployer(google, cloud)
    account.grant(permissions_of(settings))
    elsewhere["GOOGLE_OAUTH_ACCESS_TOKEN"] = account.token()
    grace = Backend(elsewhere, project).select("local")
    before = everything(google, cloud)
    grace.up(ignore)
    assert grace.outputs()["tpu_name"] == "tpu-stack-local-grace-tpu"
    grace.destroy(ignore)
    assert "iam.roles.create" in account.asked()
    assert everything(google, cloud) == before
    assert objects(google) >= stored
