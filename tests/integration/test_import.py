"""A bucket, a VM and a TPU VM that were there before the stack."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from localcloud.testing import machine
from tpu_core.contract import Metadata
from tpustack.engine.stack import Stack

from .imports import BUCKET, BUCKETS, PROJECT, TPU_VMS, VMS, carry_out, documented, enable

Deploy = Callable[..., Stack]
Pulumi = Callable[..., "subprocess.Popen[str]"]
STORAGE = "https://storage.googleapis.com/storage/v1/b"
ZONE = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}/zones/us-central1-b"
VM = f"{ZONE}/instances/tpu-stack-local-vm"
NODES = f"https://tpu.googleapis.com/v2alpha1/projects/{PROJECT}/locations/us-central1-b/nodes"
POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
ACCOUNT = "tpu-stack-local-sa"


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def metadata_of_the_job(wheel: Path) -> dict[str, str]:
    """What `pulumi preview` would show."""
    bucket = f"gs://{BUCKET}"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {
        Metadata.TPU_NAME: "tpu-stack-local-tpu",
        Metadata.TPU_ZONE: "us-central1-b",
        Metadata.TPU_PROJECT: PROJECT,
        Metadata.BUCKET_URL: bucket,
        Metadata.WHEEL: f"{bucket}/wheels/{digest[:12]}/{wheel.name}",
        Metadata.WHEEL_SHA256: digest,
        Metadata.ARGUMENTS: "[]",
        Metadata.TENSORFLOW: "2.19.1",
        Metadata.JOB: "train",
    }


def make_all(google: requests.Session, wheel: Path) -> None:
    """By hand, as someone might have; the VM without account or labels, and it migrates."""
    enable(google, "compute", "iam", "tpu")
    google.post(STORAGE, params={"project": PROJECT}, json=bucket()).raise_for_status()
    accounts = f"https://iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
    google.post(accounts, json={"accountId": ACCOUNT}).raise_for_status()
    node = {
        **POD,
        "networkConfig": {
            "network": f"projects/{PROJECT}/global/networks/default",
            "subnetwork": f"projects/{PROJECT}/regions/us-central1/subnetworks/default",
        },
        "serviceAccount": {"email": f"{ACCOUNT}@{PROJECT}.iam.gserviceaccount.com"},
    }
    google.post(NODES, json=node, params={"nodeId": "tpu-stack-local-tpu"}).raise_for_status()
    items = [{"key": key, "value": text} for key, text in metadata_of_the_job(wheel).items()]
    body = machine("us-central1-b", name="tpu-stack-local-vm", metadata={"items": items})
    google.post(f"{ZONE}/instances", json=body).raise_for_status()


def bucket() -> dict[str, Any]:
    return {"name": BUCKET, "location": "US-CENTRAL1"}


def whose(google: requests.Session) -> tuple[object, ...]:
    """What others of the same names would not have."""
    (node,) = google.get(NODES).json()["nodes"]
    made = google.get(f"{STORAGE}/{BUCKET}").json()["timeCreated"]
    return made, node["id"], google.get(VM).json()["id"]


def test_what_is_there_already_is_imported_kept_as_it_is_and_then_the_stacks(
    deploy: Deploy, google: requests.Session, project: Path, pulumi: Pulumi, trainer: Path
) -> None:
    make_all(google, trainer)
    before = whose(google)
    (node,) = google.get(NODES).json()["nodes"]
    pod = {**POD, "scopes": node["serviceAccount"]["scope"]}
    engine = deploy(tpu=pod, network={"create": False})
    files = [documented(kind) for kind in (BUCKETS, TPU_VMS, VMS)]
    carry_out(pulumi, project, [resource for file in files for resource in file])
    assert "replace" not in engine.up(ignore).changes
    assert whose(google) == before
    vm = google.get(VM).json()
    assert vm["status"] == "RUNNING"
    assert vm["labels"]["managed-by"] == "pulumi"
    assert vm["serviceAccounts"][0]["email"].startswith(f"{ACCOUNT}@")
    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert google.get(NODES).json().get("nodes", []) == []
