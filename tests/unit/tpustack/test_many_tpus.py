"""What a command asks Google about many TPUs: a list for each zone, not a call for each TPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.tpu.api import NODE
from localcloud.testing import Client
from tpu_agent.jobs.queue import Queue
from tpu_core.bucket import Bucket
from tpu_infra.names import names_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.parse import parse
from tpustack.cloud.google import Google
from tpustack.commands.recovery import lost_tpus
from tpustack.dashboard.sources import Place, tpus_of_zone
from tpustack.errors import TpustackError
from tpustack.jobs.queue import bring_up

ZONES = ("us-central1-b", "us-central1-a", "us-central1-c")
QUEUED = {"fallbackZones": list(ZONES[1:])}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud") / "home")
    running.start()
    projects.enable_services(running.cloud, DEFAULT_PROJECT, ["tpu.googleapis.com"])
    yield Client(running)
    running.stop()


@pytest.fixture
def google(client: Client) -> Google:
    return Google(client.session)


@pytest.fixture
def stand(client: Client) -> Iterator[Callable[..., None]]:
    """Has TPUs of these names stand in a zone."""
    store = client.local_cloud.cloud.store

    def put(zone: str, names: tuple[str, ...], state: str = "READY") -> None:
        for name in names:
            path = f"projects/{DEFAULT_PROJECT}/locations/{zone}/nodes/{name}"
            store.put(NODE, path, {"name": path, "state": state, "apiVersion": "V2"})

    yield put
    for path in store.keys(NODE):
        store.delete(NODE, path)


@pytest.fixture
def calls(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """How many calls about TPUs Google has had since."""
    caplog.set_level("INFO", "localcloud.requests")
    return lambda: len([line for line in caplog.messages if " tpu.projects." in line])


def a_stack(name: str, **tpu: object) -> StackSettings:
    config = {"gcp:project": DEFAULT_PROJECT, "tpu-stack:zone": ZONES[0], "tpu-stack:tpu": tpu}
    return parse(config, name)


def tpus(settings: StackSettings, stack: str) -> tuple[str, ...]:
    return names_of(settings, stack).tpus(settings.tpu.slices)


@pytest.mark.parametrize("slices", [1, 64])
def test_lost_tpus_are_found_in_a_list_of_each_zone(
    google: Google, stand: Callable[..., None], calls: Callable[[], int], slices: int
) -> None:
    names = tpus(a_stack("dev", slices=slices), "dev")
    stand(ZONES[0], names[1:])
    stand(ZONES[1], names[:1], "PREEMPTED")
    outputs = {
        "project": DEFAULT_PROJECT,
        "tpu_zone": ZONES[0],
        "tpu_zones": ZONES,
        "tpu_names": [*names, "another"],
    }
    assert lost_tpus(google, outputs) == {names[0]: "PREEMPTED", "another": "gone"}
    assert calls() == len(ZONES)


def test_no_tpu_counts_as_lost_while_its_zone_is_unreachable(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(google, "get", lambda *_: {"unreachable": [ZONES[0]]})
    outputs = {"project": DEFAULT_PROJECT, "tpu_zone": ZONES[0], "tpu_names": ["tpu"]}
    with pytest.raises(TpustackError, match=f"does not reach {ZONES[0]}"):
        lost_tpus(google, outputs)


@pytest.mark.parametrize("slices", [1, 64])
def test_a_job_that_makes_its_tpu_looks_by_lists(
    google: Google,
    stand: Callable[..., None],
    calls: Callable[[], int],
    slices: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = a_stack("dev", slices=slices, queued=QUEUED)
    names = tpus(settings, "dev")
    monkeypatch.setattr("tpustack.jobs.queue.Google", lambda: google)
    stand(ZONES[2], names)
    monkeypatch.setattr("tpustack.jobs.queue.why_waiting", lambda _: None)
    bring_up(Queue(Bucket("b", google.exchange), pytest.fail), "dev", settings, pytest.fail)
    assert calls() == len(ZONES)


@pytest.mark.parametrize("stacks", [1, 64])
def test_the_dashboard_lists_each_zone_once_however_many_stacks_miss_their_tpu(
    google: Google, calls: Callable[[], int], stacks: int
) -> None:
    settings = a_stack("dev", queued=QUEUED)
    wanted = {f"tpu-{n}": Place(f"stack-{n}", "a-bucket", settings) for n in range(stacks)}
    rows = tpus_of_zone(google, (DEFAULT_PROJECT, ZONES[0]), wanted)
    assert [row["state"] for row in rows] == ["ABSENT"] * stacks
    assert calls() == len(ZONES)
