"""Terraform with Google's provider, with nothing but the environment that `env` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tpustack.local import LocalCloudCommand
from tpustack.project import root

pytestmark = pytest.mark.skipif(
    shutil.which("terraform") is None, reason="Terraform is not installed"
)

BUILD = "from toolchain import gobuild, pins; print(gobuild.build(pins.TERRAFORM_PROVIDER))"
MAIN = """
terraform {
  required_providers {
    google-beta = { source = "hashicorp/google-beta" }
  }
}

resource "google_project_service" "compute" {
  provider = google-beta
  project  = "tpu-stack-local"
  service  = "compute.googleapis.com"
}

data "google_compute_image" "tpu" {
  provider   = google-beta
  depends_on = [google_project_service.compute]
  project    = "ubuntu-os-accelerator-images"
  family     = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
}

resource "google_compute_instance" "tpu" {
  provider     = google-beta
  project      = "tpu-stack-local"
  name         = "tpu"
  zone         = "us-east5-a"
  machine_type = "ct6e-standard-4t"
  boot_disk {
    initialize_params {
      # By its family alone the provider takes it for another one, and replaces the machine.
      image = data.google_compute_image.tpu.self_link
      size  = 200
      type  = "hyperdisk-balanced"
    }
  }
  network_interface {
    network  = "default"
    nic_type = "GVNIC"
  }
  scheduling {
    provisioning_model          = "SPOT"
    preemptible                 = true
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = "DELETE"
  }
}

output "status" {
  value = google_compute_instance.tpu.current_status
}
"""


def test_terraform_makes_a_machine_with_a_tpu_changes_nothing_again_and_destroys_it(
    cloud: LocalCloudCommand, tmp_path: Path
) -> None:
    folder, settings = tmp_path / "program", tmp_path / "terraform.rc"
    folder.mkdir()
    (folder / "main.tf").write_text(MAIN)
    environment = os.environ | {"CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": str(settings)}

    def run(*command: str, cwd: Path, **added: str) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment | added,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    built = run(sys.executable, "-c", BUILD, cwd=root() / "tools").strip()
    override = f'dev_overrides {{ "hashicorp/google-beta" = "{built}" }}'
    settings.write_text(f"provider_installation {{\n {override}\n}}\n")

    def terraform(*words: str) -> str:
        return run("terraform", *words, "-no-color", cwd=folder, **cloud.environment())

    assert 'status = "RUNNING"' in terraform("apply", "-auto-approve")
    assert cloud.status()["resources"]["instances"] == 1
    # 2 would mean: there are changes.
    terraform("plan", "-detailed-exitcode")
    terraform("destroy", "-auto-approve")
    assert "instances" not in cloud.status()["resources"]
