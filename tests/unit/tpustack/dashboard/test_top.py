"""`tpustack top`: what is known of a TPU's hosts is shown, and what is not known is said."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from rich.console import Console

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.testing import Client
from tests.unit.tpustack.conftest import Run
from tests.unit.tpustack.dashboard.conftest import ZONE, Json, make_tpu
from tpu_core.google import Answer, Body
from tpu_core.ledger import PARTS, Entry
from tpu_infra.names import names_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.parse import parse
from tpustack import top
from tpustack.cloud.google import Google
from tpustack.errors import Missing, TpustackError

TPU = names_of(parse({"gcp:project": "p", "tpu-stack:zone": ZONE}, "dev"), "dev").tpu
GIB = 2**30
HOUR = 3600.0


class Cloud:
    """Google's lists of TPUs, machines, time series and objects; any of them may be refused."""

    def __init__(self) -> None:
        self.nodes = [node(TPU)]
        self.instances: list[Json] = []
        self.series: dict[str, list[Json]] = {"duty_cycle": [], "memory_used": []}
        self.ledger: dict[str, Entry] = {}
        self.refused: dict[str, tuple[int, str]] = {}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: Body) -> Answer:
        host, path = urlsplit(url).hostname or "", unquote(urlsplit(url).path)
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        if host in self.refused:
            status, said = self.refused[host]
            return status, {}, json.dumps({"error": {"message": said}}).encode()
        if path.endswith("/timeSeries"):
            assert f'resource.labels.location = "{ZONE}"' in query["filter"]
            metric = query["filter"].split('"')[1].rpartition("/")[2]
            return answer({"timeSeries": self.series[metric]})
        if path.endswith("/nodes"):
            return answer({"nodes": self.nodes})
        if path.endswith("/instances"):
            return answer({"items": self.instances})
        if query.get("alt") == "media":
            text = self.ledger[path.partition("/o/")[2]].to_json()
            return 200, {"x-goog-generation": "1"}, text.encode()
        about = {"generation": "1", "size": "9", "updated": "2026-11-29T00:00:00Z"}
        names = [name for name in self.ledger if name.startswith(query["prefix"])]
        return answer({"items": [{"name": name, **about} for name in names]})


def answer(document: Json) -> Answer:
    return 200, {}, json.dumps(document).encode()


def node(name: str, state: str = "READY") -> Json:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 2 * HOUR))
    return {"name": f"a/b/{name}", "state": state, "createTime": created}


def series(worker: str, *values: float) -> list[Json]:
    """A chip each, with its newest value first."""
    points = [
        [{"value": {"doubleValue": value}}, {"value": {"int64Value": "7"}}] for value in values
    ]
    return [{"resource": {"labels": {"worker_id": worker}}, "points": each} for each in points]


def a_start(ago: float, waited: float, ending: str = "") -> Entry:
    seconds = dict.fromkeys(PARTS, 0.0) | {"compute": 60.0 - waited, "input": waited}
    return Entry(time.time() - ago - 60, 60.0, 0, 100, seconds, "vm", ending)


@pytest.fixture
def cloud_of_google(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    found = Cloud()
    monkeypatch.setattr(top, "Google", lambda: Google(found.send))
    return found


@pytest.fixture(autouse=True)
def stack(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The file of the stack `dev`, whose TPU tests change."""
    tpu: dict[str, object] = {}

    def load(name: str) -> StackSettings:
        keys = {"gcp:project": projects.DEFAULT_PROJECT, "tpu-stack:zone": ZONE}
        return parse({**keys, "tpu-stack:tpu": tpu}, name)

    monkeypatch.setattr("tpustack.stacks.load", load)
    return tpu


def looked(cloud: Cloud) -> top.Seen:
    return top.Top("dev", Google(cloud.send)).look()


def test_a_host_has_duty_cycle_memory_wait_for_input_and_cost(
    cloud_of_google: Cloud, run: Run
) -> None:
    cloud_of_google.series["duty_cycle"] = series("77", 90.0, 92.0)
    cloud_of_google.series["memory_used"] = series("77", 8.0 * GIB, 4.0 * GIB)
    cloud_of_google.ledger["jobs/main/ledger/1.json"] = a_start(5, 6.0)
    done = run("top", "--stack", "dev")
    heading, host, _, training = done.out.splitlines()
    assert heading.split("  ")[0] == "TPU"
    assert host.split() == [TPU, "0", "READY", "91%", "12.0", "of", "64", "GiB", "10.0%", "$9.00"]
    assert training.startswith("jobs/main runs: 100 steps, goodput 90.0%, input wait 10.0%, $0.0")
    (told,) = json.loads(run("top", "--stack", "dev", "--json").out)["hosts"]
    assert (told["duty_cycle"], told["hbm_used"], told["input_wait"]) == (91.0, 12.0 * GIB, 0.1)
    assert float(told["dollars"]) == pytest.approx(9.0, abs=0.01)


def test_without_figures_it_says_why_and_makes_none_up(cloud_of_google: Cloud, run: Run) -> None:
    out = run("top", "--stack", "dev").out
    assert "-  - of 64 GiB           -" in out
    assert "no training has written a ledger yet" in out
    assert f"Cloud Monitoring has none of the last 10 minutes in {ZONE}" in out


def test_a_loop_that_does_not_measure_its_input_has_no_wait() -> None:
    cloud = Cloud()
    cloud.ledger["jobs/own/model/ledger/1.json"] = a_start(5, 0.0)
    seen = looked(cloud)
    assert (seen.trainings[0].runs, seen.hosts[0].input_wait) == (True, None)


def test_a_training_that_ended_is_told_with_its_end_and_no_host_waits_for_it() -> None:
    cloud = Cloud()
    cloud.ledger["jobs/main/ledger/1.json"] = a_start(HOUR, 6.0, "SIGTERM")
    seen = looked(cloud)
    assert seen.hosts[0].input_wait is None
    assert "jobs/main ended 1 h ago (SIGTERM): 100 steps" in "\n".join(top.lines(seen))


def test_hosts_of_a_slice_have_the_names_of_their_workers(stack: dict[str, object]) -> None:
    stack["acceleratorType"] = "v2-32"
    cloud = Cloud()
    cloud.series["duty_cycle"] = [each for name in "4312" for each in series(name, float(name))]
    seen = looked(cloud)
    assert [(host.host, host.duty_cycle) for host in seen.hosts] == [
        *(("1", 1.0), ("2", 2.0), ("3", 3.0), ("4", 4.0))
    ]
    assert top.lines(seen)[5].startswith("all")
    # Fewer workers than hosts: none of them is known to be this host.
    cloud.series["duty_cycle"].pop()
    assert {host.duty_cycle for host in looked(cloud).hosts} == {None}


OTHERS: dict[str, Json] = {
    "a TPU": {"nodes": [node(TPU), node("other")]},
    "the TPU of a stack with a longer name": {"nodes": [node(TPU), node(f"{TPU}-b-tpu")]},
    "a machine with a TPU": {
        "instances": [
            {
                "name": "other",
                "status": "RUNNING",
                "machineType": "zones/z/machineTypes/ct6e-standard-1t",
                "creationTimestamp": "2026-11-29T00:00:00Z",
            }
        ]
    },
    "what we may not list": {"refused": {"compute.googleapis.com": (403, "denied")}},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_chips_that_may_be_of_another_tpu_are_no_hosts(others: Json) -> None:
    cloud = Cloud()
    vars(cloud).update(others)
    cloud.series["duty_cycle"] = series("1", 40.0)
    seen = looked(cloud)
    assert seen.hosts[0].duty_cycle is None
    assert f"1 worker of the project in {ZONE}, a duty cycle of 40% to 40%" in seen.notes[0]


def test_a_refusal_of_cloud_monitoring_hides_nothing_else() -> None:
    cloud = Cloud()
    cloud.refused["monitoring.googleapis.com"] = (403, "denied")
    seen = looked(cloud)
    assert seen.hosts[0].state == "READY"
    assert "ask for roles/monitoring.viewer" in seen.notes[0]


def test_a_tpu_that_is_not_ready_has_no_figures_and_is_red() -> None:
    cloud = Cloud()
    cloud.nodes = [node(TPU, "PREEMPTED")]
    cloud.series["duty_cycle"] = series("1", 40.0)
    seen = looked(cloud)
    assert (seen.hosts[0].duty_cycle, seen.hosts[0].dollars) == (None, None)
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")
    screen.print(top.painted(seen, 100))
    assert f"\x1b[31m{TPU}" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_stack_without_a_tpu_says_what_makes_it(cloud_of_google: Cloud, run: Run) -> None:
    cloud_of_google.nodes = []
    done = run("top", "--stack", "dev")
    assert (done.code, done.out) == (2, "")
    assert "the stack dev has no TPU now" in done.err
    assert "`pulumi up --stack dev`" in done.err


def test_a_look_that_fails_keeps_the_table_and_says_why() -> None:
    cloud = Cloud()
    looks = top.Top("dev", Google(cloud.send))
    first = looks.look()
    cloud.refused["tpu.googleapis.com"] = (403, "denied")
    with pytest.raises(TpustackError):
        looks.look()
    again = looks.look_again(first)
    assert again.hosts == first.hosts
    assert again.notes[0].startswith("Not read again: ")


def test_a_terminal_is_shown_one_look_after_another(
    cloud_of_google: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(top, "Console", lambda: screen)

    def sleep(_: float) -> None:
        if cloud_of_google.nodes[0]["state"] == "PREEMPTED":
            raise KeyboardInterrupt
        cloud_of_google.nodes = [node(TPU, "PREEMPTED")]

    monkeypatch.setattr("tpustack.top.time.sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        top.top_command.callback("dev", False)  # type: ignore[misc]
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert said.index("READY") < said.index("PREEMPTED")


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Client]:
    """A local cloud in which no other test has made a TPU of this name."""
    cloud = LocalCloud(tmp_path / "home")
    cloud.start()
    yield Client(cloud)
    cloud.stop()


def test_the_local_cloud_has_a_tpu_and_nothing_to_measure(empty: Client) -> None:
    looks = top.Top("dev", Google(empty.session))
    with pytest.raises((Missing, TpustackError)):
        looks.look()
    make_tpu(empty, TPU)
    services = f"serviceusage.googleapis.com/v1/projects/{projects.DEFAULT_PROJECT}/services"
    empty.post(f"{services}/monitoring.googleapis.com:enable", {})
    seen = looks.look()
    assert [(host.state, host.duty_cycle) for host in seen.hosts] == [("READY", None)]
    assert any("the local cloud has no chips" in note for note in seen.notes)
