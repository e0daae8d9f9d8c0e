"""The agent: what it costs its machine, and what becomes of its trainer when it is killed.

A real process on a machine of the local cloud, with recovery and limits, looks after a trainer that
sleeps. Its TPU is not there: it asks as often as for one that is READY, and only the probe of the
endpoint is left out. The kills are those of tests/agents.py.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import psutil
import requests

from bench.measure import Result
from tests.agents import kill_agents
from tests.sandbox import session
from tpu_agent.bundle import program, startup_script
from tpustack.local import LocalCloudCommand

_KILLS = 100
_MEASURED_SECONDS = 60.0
_PROJECT = "tpu-stack-local"
_ZONE = f"https://compute.googleapis.com/compute/v1/projects/{_PROJECT}/zones/us-central1-b"
_IMAGE = "projects/debian-cloud/global/images/family/debian-12"
_EMAIL = f"machines@{_PROJECT}.iam.gserviceaccount.com"
_LIMITS = {
    "tpus": ["t"],
    "timeToLiveHours": 8,
    "idleMinutes": 30,
    "recovery": {"preemption": 9, "failure": 9},
}
_SCRIPT = """
start_agent
order_training jobs/j/finished "PYTHONUNBUFFERED=1" -- /bin/sh -c 'echo "it trains"; sleep 9999'
"""


def measure_agent() -> list[Result]:
    """Memory and share of a core of the agent, and second trainers in a hundred kills."""
    with tempfile.TemporaryDirectory() as name:
        told = kill_agents(Path(name), _KILLS, seed=0)
    lost = told.begun - told.ended + (not told.finished)
    return [
        *_cost(),
        Result(f"agent: second trainers in {_KILLS} kills", told.twice, "trainers", 0),
        Result(f"agent: trainers lost in {_KILLS} kills", lost, "trainers", 0),
    ]


def _cost() -> list[Result]:
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCloudCommand(Path(folder) / "cloud").running() as cloud,
    ):
        google = session(cloud)
        _boot(google)
        agent = _agent(google)
        before, begun = agent.cpu_times(), time.monotonic()
        time.sleep(_MEASURED_SECONDS)
        after, took = agent.cpu_times(), time.monotonic() - begun
        share = (after.user + after.system - before.user - before.system) / took
        memory = agent.memory_info().rss / 2**20
    return [
        Result("agent: share of a core", 100 * share, "%", 0.5),
        Result("agent: memory", memory, "MiB", 40),
    ]


def _boot(google: requests.Session) -> None:
    """Make a machine that runs the agent as its start-up script does it."""
    for api in ("compute", "iam", "tpu"):
        url = f"https://serviceusage.googleapis.com/v1/projects/{_PROJECT}/services/{api}"
        google.post(f"{url}.googleapis.com:enable", json={}).raise_for_status()
    accounts = f"https://iam.googleapis.com/v1/projects/{_PROJECT}/serviceAccounts"
    google.post(accounts, json={"accountId": "machines"}).raise_for_status()
    manager = f"https://cloudresourcemanager.googleapis.com/v1/projects/{_PROJECT}"
    policy = google.post(f"{manager}:getIamPolicy", json={}).json()
    member = {"role": "roles/owner", "members": [f"serviceAccount:{_EMAIL}"]}
    policy["bindings"] = [*policy.get("bindings", ()), member]
    google.post(f"{manager}:setIamPolicy", json={"policy": policy}).raise_for_status()
    bucket = {"name": "agent-bench", "location": "US-CENTRAL1"}
    url = "https://storage.googleapis.com/storage/v1/b"
    google.post(url, params={"project": _PROJECT}, json=bucket).raise_for_status()
    own = startup_script("vm.sh").rpartition("serve_health\n\nstart_training")[0]
    told = {
        "startup-script": own + _SCRIPT,
        "agent": program(),
        "limits": json.dumps(_LIMITS),
        "bucket-url": "gs://agent-bench",
        "tpu-project": _PROJECT,
        "tpu-zone": "us-central1-b",
        "tpu-name": "t",
        "training-job": "j",
    }
    account = {"email": _EMAIL, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
    body = {
        "name": "m",
        "machineType": "zones/us-central1-b/machineTypes/n1-standard-2",
        "disks": [{"boot": True, "initializeParams": {"sourceImage": _IMAGE}}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "serviceAccounts": [account],
        "metadata": {"items": [{"key": key, "value": value} for key, value in told.items()]},
    }
    google.post(f"{_ZONE}/instances", json=body).raise_for_status()


def _agent(google: requests.Session) -> psutil.Process:
    """Wait until the trainer runs; return the agent's process."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        said = google.get(f"{_ZONE}/instances/m/serialPort").json().get("contents", "")
        if "it trains" in said:
            return next(process for process in psutil.process_iter() if _is_agent(process))
        time.sleep(0.2)
    raise TimeoutError(f"the agent has not started its trainer: {said}")


def _is_agent(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return len(words) == 2 and words[1].endswith("/agent.py") and "/cloud/machines/m-" in words[1]
