"""A stack that runs jobs, on the real engine and a machine that really runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tpustack.cloud.local import LocalCloudCommand
from tpustack.engine.stack import Stack

MAIN = """
import os, sys, tpu_training
print("argument", sys.argv[1], "url", os.environ["TPU_GRPC_URL"], flush=True)
print("from", os.path.relpath(sys.prefix, os.environ["ARTIFACTS_DIR"]), flush=True)
open(os.path.join(os.environ["ARTIFACTS_DIR"], "made.txt"), "w").write("made")
sys.exit(3)
"""
TPUSTACK = (sys.executable, "-m", "tpustack")
SECONDS = 120


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


def test_a_job_goes_from_a_folder_to_its_exit_code_and_the_state_knows_no_difference(
    deploy: Callable[..., Stack], cloud: LocalCloudCommand, tmp_path: Path
) -> None:
    before = cloud.status()["resources"]
    engine = deploy(jobs={"enabled": True})
    outputs = engine.up(ignore).outputs
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "main.py").write_text(MAIN)

    def job(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TPUSTACK, "job", verb, *arguments, "--bucket", outputs["bucket_url"]],
            env={**os.environ, **cloud.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    submitted = job(
        *("submit", "--command", "python main.py 42", "--dir", str(folder), "--name", "first"),
        *("--framework", "tensorflow"),
    )
    assert submitted.returncode == 0, submitted.stderr
    followed = job("logs", "first", "--follow")
    assert followed.returncode == 3, followed.stderr
    assert f"argument 42 url {outputs['tpu_endpoint']}\nfrom ../venv\n" in followed.stdout
    (made,) = json.loads(job("artifacts", "first", "--json").stdout)
    assert (made["name"], made["bytes"]) == ("artifacts/made.txt", 4)

    assert job("submit", "--command", "sleep 600", "--name", "long").returncode == 0
    assert job("stop", "long").returncode == 0
    assert job("wait", "long", "--timeout", "1m").returncode == 143

    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before
