"""Which worker of which slice trains, and which only serve."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tpu_agent.bundle import startup_script

# Everything that the script would do to a machine, said instead.
STUBS = """
attribute() { [[ -v METADATA_OF[$1] ]] && printf '%s' "${METADATA_OF[$1]}"; }
start_training() { echo "trains on $1"; }
start_jobs() { echo "runs jobs on $1"; }
require_scope() { :; }
await_grants() { :; }
ensure_tensorflow() { PYTHON=python3; }
systemd-run() { echo "serves"; }
"""
SLICES = "t-0,t-1"


@pytest.mark.parametrize(
    ("node", "worker", "slices", "grpc", "done"),
    [
        ("t", "0", "", "true", "trains on t"),
        ("t", "0", "", "false", "trains on local"),
        ("t", "1", "", "true", ""),
        ("t-0", "0", SLICES, "true", "trains on t-0"),
        ("t-0", "1", SLICES, "true", ""),
        ("t-1", "0", SLICES, "true", ""),
        ("t-1", "0", SLICES, "false", "serves"),
    ],
)
def test_worker_0_of_the_first_slice_trains(
    node: str, worker: str, slices: str, grpc: str, done: str, tmp_path: Path
) -> None:
    assert booted(node, worker, slices, grpc, tmp_path) == done


@pytest.mark.parametrize(
    ("told", "done"),
    [
        ({}, "trains on local"),
        ({"worker-network-endpoints": "t"}, "trains on local"),
        (
            {"worker-network-endpoints": "t-001,t-002", "agent-worker-number": "0"},
            "trains on local",
        ),
        (
            {"worker-network-endpoints": "t-001,t-002", "agent-worker-number": "1"},
            "runs jobs on local",
        ),
        ({"worker-network-endpoints": "t-001,t-002"}, "runs jobs on local"),
    ],
)
def test_of_machines_of_compute_engine_only_the_first_or_only_one_trains(
    told: dict[str, str], done: str, tmp_path: Path
) -> None:
    metadata = {"tpu-is-this-machine": "true", "tpu-serves-grpc": "false", "training-jobs": "true"}
    assert started(metadata | told, tmp_path) == done


@pytest.mark.parametrize("number", ["0", "1"])
def test_on_jax_each_machine_of_a_slice_trains(number: str, tmp_path: Path) -> None:
    hosts = {"worker-network-endpoints": "t-001,t-002", "agent-worker-number": number}
    backend = {"tpu-serves-grpc": "false", "training-backend": "jax"}
    told = {"tpu-is-this-machine": "true", **backend, **hosts}
    assert started(told, tmp_path) == "trains on local"


def booted(node: str, worker: str, slices: str, grpc: str, home: Path, jobs: str = "") -> str:
    """Run the script of a host; return what it starts."""
    metadata = {
        "agent-worker-number": worker,
        "tpu-env": f"ACCELERATOR_TYPE: 'v2-8'\nNODE_ID: '{node}'\nWORKER_ID: '{worker}'\n",
        "tpu-name": "t-0" if slices else "t",
        "tpu-serves-grpc": grpc,
        "training-tensorflow": "2.18.0",
        **({"tpu-names": slices} if slices else {}),
        **({"training-jobs": jobs} if jobs else {}),
    }
    return started(metadata, home)


def started(metadata: dict[str, str], home: Path) -> str:
    """Run the script of a host with this metadata; return what it starts."""
    metadata = {"tpu-name": "t", "tpu-runs-training": "true", **metadata}
    values = " ".join(f"[{key}]={shlex.quote(value)}" for key, value in metadata.items())
    shared, own = startup_script("tpu_vm.sh").split("# Every host of a TPU VM", 1)
    script = f"{shared}\ndeclare -A METADATA_OF=({values})\n{STUBS}\n#{own}"
    run = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    assert run.returncode == 0, run.stderr
    said = [line for line in run.stdout.splitlines() if not line.startswith("tpu-stack:")]
    return said[0] if said else ""


@pytest.mark.parametrize(
    ("worker", "grpc", "jobs", "done"),
    [
        ("3", "false", "true", "runs jobs on local"),
        # TensorFlow drives all hosts from worker 0.
        ("3", "true", "true", ""),
        ("3", "false", "", ""),
    ],
)
def test_the_other_hosts_run_jobs_where_programs_drive_the_chips_of_their_own_host(
    worker: str, grpc: str, jobs: str, done: str, tmp_path: Path
) -> None:
    assert booted("t", worker, "", grpc, tmp_path, jobs) == done
