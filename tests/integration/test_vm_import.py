"""A VM that was there before the stack."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import requests

from infra.components.machine import Job, job_metadata
from localcloud.testing import machine
from tpustack.engine import Engine
from tpustack.project import ROOT

Deploy = Callable[..., Engine]
Pulumi = Callable[..., "subprocess.Popen[str]"]
PROJECT = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local"
INSTANCES = f"{PROJECT}/zones/us-central1-b/instances"
SERVICES = "https://serviceusage.googleapis.com/v1/projects/tpu-stack-local/services"


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def metadata_of_the_job(wheel: Path) -> dict[str, str]:
    """What `pulumi preview` would show."""
    bucket = "gs://tpu-stack-local-tpu-stack-local"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    job = Job(
        name="train",
        args=(),
        tensorflow="2.19.1",
        bucket_url=bucket,
        wheel_url=f"{bucket}/wheels/{digest[:12]}/{wheel.name}",
        wheel_sha256=digest,
    )
    found = job_metadata(job, ("tpu-stack-local-tpu",), "us-central1-b", "tpu-stack-local")
    return {key: str(value) for key, value in found.items()}


def make_vm(google: requests.Session, metadata: dict[str, str]) -> None:
    """By hand, as somebody might have: without account or labels, and it migrates."""
    google.post(f"{SERVICES}/compute.googleapis.com:enable", json={}).raise_for_status()
    items = [{"key": key, "value": text} for key, text in metadata.items()]
    body = machine("us-central1-b", name="tpu-stack-local-vm", metadata={"items": items})
    google.post(INSTANCES, json=body).raise_for_status()


def test_a_vm_that_is_there_already_is_imported_and_kept(
    deploy: Deploy, google: requests.Session, project: Path, pulumi: Pulumi, trainer: Path
) -> None:
    make_vm(google, metadata_of_the_job(trainer))
    made = google.get(f"{INSTANCES}/tpu-stack-local-vm").json()["id"]
    engine = deploy(network={"create": False})
    (project / "import.json").write_text(documented_import())
    run = pulumi(
        *("import", "--file=import.json", "--yes", "--generate-code=false", "--protect=false"),
        *("--skip-preview", "--non-interactive"),
    )
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 0, said
    changes = engine.up(ignore).changes
    assert (changes["update"], changes.get("replace", 0)) == (1, 0)
    vm = google.get(f"{INSTANCES}/tpu-stack-local-vm").json()
    assert (vm["id"], vm["status"]) == (made, "RUNNING")
    assert vm["labels"]["managed-by"] == "pulumi"
    assert vm["serviceAccounts"][0]["email"].startswith("tpu-stack-local-sa@")
    assert engine.up(ignore).changed == 0


def documented_import() -> str:
    """The file on the page, for the VM of stack `local`."""
    (block,) = re.findall(
        r"```json\n(.*?)```", (ROOT / "docs" / "vm.md").read_text("utf-8"), re.DOTALL
    )
    for name, value in (
        ("PROJECT", "tpu-stack-local"),
        ("ZONE", "us-central1-b"),
        ("NAMEPREFIX", "tpu-stack-local"),
    ):
        block = block.replace(name, value)
    return json.dumps(json.loads(block))
