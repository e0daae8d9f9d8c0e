"""The local cloud: requests a second, latency and memory."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import psutil
import requests

from bench.result import Result
from bench.sandbox import session
from tpustack.local import LocalCloudCommand

_ROUNDS = 300
_RESOURCES = 1000
_URL = "https://storage.googleapis.com/storage/v1/b"


def measure() -> list[Result]:
    """A create-get-delete loop over buckets on one connection, then 1,000 objects at rest."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCloudCommand(Path(folder) / "cloud").running() as cloud,
    ):
        return _measure(cloud)


def _measure(cloud: LocalCloudCommand) -> list[Result]:
    status, google = cloud.status(), session(cloud)
    project = {"project": status["project"]}
    process = psutil.Process(status["pid"])
    times: list[float] = []
    for number in range(_ROUNDS):
        name = f"bench-{number}"
        times += [
            _timed(google, "POST", _URL, params=project, json={"name": name, "location": "US"}),
            _timed(google, "GET", f"{_URL}/{name}"),
            _timed(google, "DELETE", f"{_URL}/{name}"),
        ]
    for number in range(_RESOURCES):
        body = {"name": f"bench-resource-{number}", "location": "US"}
        _timed(google, "POST", _URL, params=project, json=body)
    memory = process.memory_info().rss / 2**20
    return [
        Result("local cloud: create-get-delete", len(times) / sum(times), "1/s", better="higher"),
        Result("local cloud: p99", statistics.quantiles(times, n=100)[98] * 1000, "ms"),
        Result(f"local cloud: memory with {_RESOURCES} resources", memory, "MiB"),
    ]


def _timed(google: requests.Session, verb: str, url: str, **arguments: object) -> float:
    started = time.perf_counter()
    response = google.request(verb, url, **arguments)  # type: ignore[arg-type]
    elapsed = time.perf_counter() - started
    response.raise_for_status()
    return elapsed
