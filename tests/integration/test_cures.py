"""`pulumi up` itself says what to do about an error of Google's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import requests

from tests.patience import PATIENCE
from tpu_training.errors import known_errors
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

PROJECT = "projects/tpu-stack-local"
CURES = {known.id: known.fix for known in known_errors()}


@pytest.fixture
def up(pulumi: Callable[..., subprocess.Popen[str]]) -> Callable[[], tuple[int, str]]:
    def run() -> tuple[int, str]:
        started = pulumi("up", "--yes", "--skip-preview", "--non-interactive", "--color=never")
        said, _ = started.communicate(timeout=PATIENCE)
        return started.returncode, said

    return run


def test_a_stock_out_and_a_policy_come_with_their_cures_and_are_then_overcome(
    deploy: Callable[..., Stack],
    up: Callable[[], tuple[int, str]],
    cloud: LocalCloudCommand,
    google: requests.Session,
) -> None:
    deploy()

    def refused(cause: str) -> None:
        code, said = up()
        assert code != 0
        assert said.partition("Diagnostics:")[2].count(CURES[cause]) == 1, said

    cloud.run("faults", "stockout", "*", "v2-8")
    refused("stock-out")
    cloud.run("faults", "clear")
    services = f"https://serviceusage.googleapis.com/v1/{PROJECT}/services"
    google.post(f"{services}/orgpolicy.googleapis.com:enable", json={}).raise_for_status()
    policies = f"https://orgpolicy.googleapis.com/v2/{PROJECT}/policies"
    name = f"{PROJECT}/policies/compute.requireOsLogin"
    policy = {"name": name, "spec": {"rules": [{"enforce": True}]}}
    counted = {"X-Goog-User-Project": PROJECT.rpartition("/")[2]}
    google.post(policies, json=policy, headers=counted).raise_for_status()
    # Another disk is another VM.
    deploy(vm={"osLogin": False, "bootDiskGib": 60})
    refused("policy-os-login")
    deploy()
    code, said = up()
    assert code == 0, said
