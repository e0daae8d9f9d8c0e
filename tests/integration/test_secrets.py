"""Secrets that a key of Cloud KMS protects: the engine reaches it by gRPC."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import requests
import yaml

from tests.patience import PATIENCE

PROJECT = "projects/tpu-stack-local"
RINGS = f"{PROJECT}/locations/us-central1/keyRings"
KEY = f"{RINGS}/ring/cryptoKeys/key"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(project: Path, environment: Mapping[str, str]) -> Run:
    """Runs the engine without a passphrase."""
    variables = {**os.environ, **environment}
    variables.pop("PULUMI_CONFIG_PASSPHRASE", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["pulumi", "--non-interactive", *arguments, "--stack", "team"],
            cwd=project,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    return run


@pytest.fixture
def key(google: requests.Session) -> None:
    service = f"https://serviceusage.googleapis.com/v1/{PROJECT}/services/cloudkms.googleapis.com"
    kms = "https://cloudkms.googleapis.com/v1"
    for url, body in (
        (f"{service}:enable", {}),
        (f"{kms}/{RINGS}?keyRingId=ring", {}),
        (f"{kms}/{RINGS}/ring/cryptoKeys?cryptoKeyId=key", {"purpose": "ENCRYPT_DECRYPT"}),
    ):
        google.post(url, json=body, timeout=30).raise_for_status()


def test_a_secret_is_kept_and_read_with_a_key_of_kms_and_without_one_says_why(
    run: Run, project: Path, google: requests.Session, key: None
) -> None:
    made = run("stack", "init", "--secrets-provider", f"gcpkms://{KEY}")
    assert made.returncode == 0, made.stderr
    kept = run("config", "set", "--secret", "tpu-stack:token", "hush")
    assert kept.returncode == 0, kept.stderr
    file = yaml.safe_load((project / "stacks/Pulumi.team.yaml").read_text(encoding="utf-8"))
    assert file["secretsprovider"] == f"gcpkms://{KEY}"
    assert "secure" in file["config"]["tpu-stack:token"]
    assert run("config", "get", "tpu-stack:token").stdout == "hush\n"
    # The program would keep it in clear.
    run("config", "set", "tpu-stack:zone", "us-central1-b")
    previewed = run("preview")
    assert previewed.returncode != 0
    assert 'token: "[secret]" is a secret, but' in previewed.stdout + previewed.stderr
    assert "hush" not in previewed.stdout + previewed.stderr
    version = f"https://cloudkms.googleapis.com/v1/{KEY}/cryptoKeyVersions/1"
    disabled = {"state": "DISABLED"}
    google.patch(version, params={"updateMask": "state"}, json=disabled, timeout=30)
    refused = run("config", "get", "tpu-stack:token")
    assert refused.returncode != 0
    assert f"{KEY}/cryptoKeyVersions/1 is not enabled, current state is: DISABLED" in refused.stderr
