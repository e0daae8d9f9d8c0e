"""What the machine makes of what comes back from an address of Google's."""

from __future__ import annotations

import io
import urllib.request
from email.message import Message
from typing import ClassVar
from urllib.error import HTTPError

import pytest

from tpu_agent.jobs.environment import Tpu, variables
from tpu_agent.jobs.queue import Spec
from tpu_agent.jobs.runner import Tpus
from tpu_agent.main import Machine
from tpu_core.google import Json
from tpu_core.tpu import TPU

FAILURE = (502, {"error": {"message": "the answer is not a JSON object"}})


class Answer(io.BytesIO):
    """An answer of this content."""

    status = 200
    headers: ClassVar[dict[str, str]] = {}


@pytest.mark.parametrize(
    ("url", "text", "expected"),
    [
        (TPU, b"<html>Log in to the network first</html>", FAILURE),
        (TPU, b"[1]", FAILURE),
        (TPU, b'{"state": "READY"}', (200, {"state": "READY"})),
    ],
)
def test_a_page_in_place_of_an_apis_answer_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, url: str, text: bytes, expected: tuple[int, Json]
) -> None:
    machine = Machine()
    monkeypatch.setattr(machine, "metadata", lambda path: ('{"access_token": "t"}', ""))
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", lambda *_, **__: Answer(text))
    assert machine.client.call("GET", f"{url}v2/x", None) == expected


def test_a_job_may_wait_a_minute_for_a_change_of_the_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a training does for notices, through the job's own metadata server."""
    machine, timeouts = Machine(), list[float]()

    def opened(*_: object, timeout: float) -> Answer:
        timeouts.append(timeout)
        return Answer(b"{}")

    monkeypatch.setattr(machine._server._opener, "open", opened)
    machine.metadata("instance/?recursive=true&wait_for_change=true&timeout_sec=60&last_etag=0")
    assert timeouts[0] > 60 + 10


def test_a_machine_that_is_the_tpu_asks_no_api_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "bucket-url": "gs://b",
        "tpu-project": "p",
        "tpu-zone": "us-east5-a",
        "tpu-name": "t",
        "tpu-is-this-machine": "true",
    }
    entries = {f"instance/attributes/{key}": text for key, text in told.items()}
    entries |= {"instance/id": "7", "instance/network-interfaces/0/ip": "10.10.0.2"}

    def read(path: str) -> tuple[str, str]:
        if path not in entries:
            raise HTTPError(path, 404, "Not Found", Message(), None)
        return entries[path], ""

    def call(*_: object) -> tuple[int, Json]:
        raise AssertionError("no API knows it")

    machine = Machine()
    monkeypatch.setattr(machine, "metadata", read)
    tpu = Tpus(machine.place(), "t", call, lambda: None, is_here=True)
    found = tpu.ready()
    assert found is not None
    assert (found.hosts, found.zone, found.created) == (("10.10.0.2",), "us-east5-a", "7")
    assert tpu.why_lost("7") is None
    assert tpu.why_lost("6") == "the TPU t was recreated"
    del entries["instance/attributes/tpu-is-this-machine"]
    assert machine.place().here is None


@pytest.mark.parametrize("endpoints", ["t-001,t-002", "unknown:1:t-001,unknown:2:t-002"])
def test_a_machine_of_a_slice_knows_all_its_hosts_by_either_form_of_their_endpoints(
    monkeypatch: pytest.MonkeyPatch, endpoints: str
) -> None:
    told = {
        "bucket-url": "gs://b",
        "tpu-project": "p",
        "tpu-zone": "us-east5-a",
        "tpu-is-this-machine": "true",
        "worker-network-endpoints": endpoints,
    }
    entries = {f"instance/attributes/{key}": text for key, text in told.items()} | {
        "instance/id": "7"
    }

    def read(path: str) -> tuple[str, str]:
        if path not in entries:
            raise HTTPError(path, 404, "Not Found", Message(), None)
        return entries[path], ""

    machine = Machine()
    monkeypatch.setattr(machine, "metadata", read)
    tpus = Tpus(machine.place(), "t", lambda *_: (500, {}), lambda: None, is_here=True)
    found = tpus.ready()
    assert found is not None
    assert found.hosts == ("t-001", "t-002")


@pytest.mark.parametrize("backend", ["jax", None])
def test_the_trainer_on_jax_is_told_the_hosts_of_its_slice_as_a_job_is(
    monkeypatch: pytest.MonkeyPatch, backend: str | None
) -> None:
    told = {
        "training-backend": backend,
        "worker-network-endpoints": "unknown:1:10.0.0.2,unknown:2:10.0.0.3",
        "agent-worker-number": "1",
        "cost-note": "It costs.",
    }
    machine = Machine()
    monkeypatch.setattr(machine, "optional", told.get)
    tpu = Tpu("t", "z", "p", ("10.0.0.2", "10.0.0.3"), "7", is_here=True, worker=1)
    of_job = variables("j", 1, "b", Spec("true", framework="jax"), tpu)
    names = [name for name in of_job if name.startswith(("JAX_NUM", "JAX_P", "JAX_C", "KERAS"))]
    given = {name: of_job[name] for name in names if name != "JAX_PLATFORMS"} if backend else {}
    assert machine.trainer_environment() == {"TPU_TRAINING_COST_NOTE": "It costs.", **given}
    assert len(given) == (6 if backend else 0)


@pytest.mark.parametrize(
    ("endpoints", "preemptible", "here", "watches"),
    [
        ("t-001,t-002", "TRUE", True, True),
        # Google brings these back.
        ("t-001,t-002", "FALSE", True, False),
        ("t-001", "TRUE", True, False),
        # Those of the TPU API are recreated by the agent.
        ("t-001,t-002", "TRUE", False, False),
    ],
)
def test_only_hosts_of_a_spot_slice_on_compute_engine_watch_each_other(
    monkeypatch: pytest.MonkeyPatch, endpoints: str, preemptible: str, here: bool, watches: bool
) -> None:
    machine = Machine()
    told = {"worker-network-endpoints": endpoints, "tpu-is-this-machine": "true" if here else None}
    monkeypatch.setattr(machine, "optional", told.get)
    monkeypatch.setattr(machine, "entry", {"scheduling/preemptible": preemptible}.get)
    assert machine.is_of_spot_slice() == watches
