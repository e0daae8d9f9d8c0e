"""Google's clients of gRPC, with nothing but the environment that `env` prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.server

PROGRAM = """
import google.auth
from google.auth.transport.requests import AuthorizedSession
from google.cloud import kms_v1, tpu_v2alpha1

session = AuthorizedSession(google.auth.default()[0])
project = "projects/tpu-stack-local"
for service in ("cloudkms", "tpu"):
    services = f"https://serviceusage.googleapis.com/v1/{project}/services"
    session.post(f"{services}/{service}.googleapis.com:enable").raise_for_status()
place = f"{project}/locations/us-central1"
keys = kms_v1.KeyManagementServiceClient()
print(keys.create_key_ring(parent=place, key_ring_id="ring", key_ring={}).name)
runtimes = tpu_v2alpha1.TpuClient().list_runtime_versions(parent=f"{place}-b")
print(any(runtime.version == "tpu-vm-tf-2.19.0-pod-pjrt" for runtime in runtimes))
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_environment_alone_leads_clients_of_grpc_here(started: Run) -> None:
    variables = json.loads(started("env", "--json").stdout)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    ring = "projects/tpu-stack-local/locations/us-central1/keyRings/ring"
    assert done.stdout == f"{ring}\nTrue\n", done.stderr
