"""A protected bucket stays; one command takes everything that is expensive down."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import requests

from tests.patience import PATIENCE
from tpustack.engine.stack import Stack

Deploy = Callable[..., Stack]
Pulumi = Callable[..., "subprocess.Popen[str]"]
PROJECT = "projects/tpu-stack-local"
MACHINES = {
    "TPU": f"https://tpu.googleapis.com/v2/{PROJECT}/locations/us-central1-b/nodes",
    "VM": f"https://compute.googleapis.com/compute/v1/{PROJECT}/zones/us-central1-b/instances",
}


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def test_a_protected_bucket_keeps_no_tpu_alive(
    deploy: Deploy, pulumi: Pulumi, google: requests.Session
) -> None:
    def destroy(*options: str) -> tuple[int, str]:
        run = pulumi("destroy", "--yes", "--non-interactive", *options)
        said, _ = run.communicate(timeout=PATIENCE)
        return run.returncode, said

    def machines() -> set[str]:
        answers = {name: google.get(url).json() for name, url in MACHINES.items()}
        return {name for name, said in answers.items() if said.get("items") or said.get("nodes")}

    engine = deploy(bucket={"protect": True})
    engine.up(ignore)
    bucket = engine.outputs()["bucket_name"]
    code, said = destroy()
    assert code != 0
    assert "protected" in said
    assert machines() == {"TPU", "VM"}
    code, said = destroy("--exclude-protected")
    assert code == 0, said
    assert machines() == set()
    found = google.get(f"https://storage.googleapis.com/storage/v1/b/{bucket}/o").json()["items"]
    assert any(item["name"].startswith("wheels/") for item in found)
    # The same command brings everything back, around the same bucket.
    engine.up(ignore)
    assert engine.outputs()["bucket_name"] == bucket
    assert machines() == {"TPU", "VM"}
