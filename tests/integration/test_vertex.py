"""Managed training on the real engine: what it declares is enough for a job, and goes with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE
from tpu_infra.deployer import READ, WRITE, permissions_of
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

from .test_stacks import TPU, Become, ignore, settings_of

JOBS = {"vertex": {"submitters": ["user:developer@tpu-stack.local"]}}
SETTINGS: dict[str, Any] = {"tpu": TPU, "jobs": JOBS, "bucket": {"forceDestroy": True}}


def test_a_deployer_with_the_least_rights_makes_what_a_managed_job_takes(
    deploy: Callable[..., Stack],
    deployer: Become,
    cloud: LocalCloudCommand,
    project: Path,
) -> None:
    permissions = permissions_of(settings_of("local", SETTINGS))
    runner = deployer(permissions)
    before = cloud.status()["resources"]
    engine = deploy(**SETTINGS)
    engine.up(ignore)

    def job(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tpustack", "job", verb, *arguments, "--stack", "local"],
            env={**os.environ, **cloud.environment()},
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    command = 'echo "$JOB_DIR"; echo made >"$ARTIFACTS_DIR/a.txt"; exit 4'
    submitted = job("submit", "--on", "vertex", "--name", "first", "--command", command)
    assert (submitted.returncode, submitted.stderr) == (0, "")
    followed = job("logs", "first", "--follow")
    assert (followed.returncode, followed.stdout[-12:]) == (4, "/jobs/first\n")
    (made,) = json.loads(job("artifacts", "first", "--json").stdout)
    assert made["name"] == "artifacts/a.txt"

    assert engine.up(ignore).changed == 0
    asked = runner.asked()
    engine.refresh(ignore)
    looked = runner.asked()
    assert looked == permissions.of_project(READ)

    left = job("submit", "--on", "vertex", "--name", "left", "--command", "sleep 600")
    assert (left.returncode, left.stderr) == (0, "")
    said: list[str] = []
    engine.destroy(said.append)
    assert [line for line in said if "cancelling the custom job left (projects/" in line]
    assert cloud.status()["resources"] == before
    # Nothing on the list is spare.
    assert {*asked, *looked, *runner.asked()} >= {*permissions.of_project(READ, WRITE)}
