"""How a scenario is played, on a clock of the test's own and an emulator that only writes down."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.lifecycle import CommandError
from localcloud.scenario import Event, Run

Told = list[tuple[float, str, str]]


class Emulator:
    """Notes what it is asked; a machine that is not there can't be listened to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.port: str | None = None
        self.objects: list[str] = []
        self.missing = "nobody"

    def __call__(self, verb: str, name: str, sent: dict[str, Any]) -> dict[str, Any]:
        if name == "objects":
            return {"objects": self.objects}
        if name == "serial":
            if self.port is None:
                raise CommandError("no machine is called vm", 2)
            start = min(sent["start"], len(self.port))
            return {"contents": self.port[start:], "next": len(self.port)}
        if sent.get("name") == self.missing:
            raise CommandError("no machine is called nobody", 2)
        self.asked.append((verb, name, sent))
        return {"id": "fault-7"}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def emulator() -> Emulator:
    return Emulator()


def playing(emulator: Emulator, *events: Event) -> tuple[Run, Told]:
    told: Told = []
    run = Run(list(events), emulator, emulator, lambda *said: told.append(said))
    return run, told


def test_faults_come_at_their_time_and_go_when_theirs_is_over(emulator: Emulator) -> None:
    stockout = {"zone": "z", "types": ["*"]}
    run, told = playing(
        emulator,
        Event("stockout", stockout, at=2.0, lasts=3.0),
        Event("preempt", "tpu", at=1.0),
    )
    run.play()
    assert told == [
        (1.0, "happens", "preempt tpu"),
        (2.0, "happens", "stockout zone z, types ['*']"),
        (5.0, "ends", "stockout zone z, types ['*']"),
    ]
    assert emulator.asked == [
        ("POST", "break", {"what": "preempt", "name": "tpu", "on": True}),
        ("POST", "setting", {"name": "stockout", "value": {"z": ["*"]}}),
        ("DELETE", "setting", {"name": "stockout", "part": "z"}),
    ]
    assert run.failed == 0


def test_a_line_of_a_serial_port_sets_a_fault_off_also_when_it_comes_in_pieces(
    emulator: Emulator,
) -> None:
    run, told = playing(
        emulator, Event("hang", "tpu", at=1.0, lasts=1.0, serial=("vm", r"step=40\b"))
    )
    run.look()
    emulator.port = "step=4"
    run.look()
    emulator.port += "\nstep=40"
    run.look()
    assert told == []
    emulator.port += " loss=1\n"
    run.play()
    assert [(said[0], said[1]) for said in told] == [(1.0, "happens"), (2.0, "ends")]


def test_an_object_sets_a_fault_off(emulator: Emulator) -> None:
    run, told = playing(emulator, Event("expire-tokens", "vm", found="gs://b/*"))
    run.look()
    assert told == []
    emulator.objects = ["b/o"]
    run.play()
    assert told == [(0.0, "happens", "expire-tokens vm")]


def test_calls_that_fail_work_again_at_the_end(emulator: Emulator) -> None:
    slow = {"method": "storage.*", "status": 0, "delay": 2}
    run, _ = playing(emulator, Event("error", slow, lasts=1.0))
    run.play()
    assert emulator.asked == [
        ("POST", "faults", slow),
        ("DELETE", "fault", {"id": "fault-7"}),
    ]


def test_a_failing_event_does_not_stop_the_others(emulator: Emulator) -> None:
    run, told = playing(emulator, Event("dead", "nobody"), Event("dead", "tpu", at=1.0))
    run.play()
    assert told == [
        (1.0, "happens", "dead tpu"),
        (60.0, "fails", "dead nobody: no machine is called nobody"),
    ]
    assert run.failed == 1


def test_an_event_waits_for_what_it_is_to_break(emulator: Emulator) -> None:
    """Such as a machine that boots, or a program that starts again."""
    run, told = playing(emulator, Event("dead", "nobody"))
    run.look()
    emulator.missing = ""
    emulator.now += 30.0
    run.play()
    assert told == [(30.0, "happens", "dead nobody")]


def test_an_interrupted_scenario_lifts_what_is_in_force_and_names_what_never_came(
    emulator: Emulator,
) -> None:
    run, told = playing(
        emulator, Event("hang", "tpu", lasts=900.0), Event("dead", "tpu", serial=("vm", "never"))
    )

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    emulator.sleep = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run.play()
    assert [said[1] for said in told] == ["happens", "ends", "never"]
    assert emulator.asked[-1] == ("POST", "break", {"what": "hang", "name": "tpu", "on": False})
    assert run.failed == 1


def test_a_scenario_lifts_everything_though_its_output_is_closed(emulator: Emulator) -> None:
    def closed(*said: object) -> None:
        if emulator.now > 100.0:
            raise BrokenPipeError

    hangs = [Event("hang", name, lasts=900.0) for name in ("one", "two")]
    late = Event("dead", "three", at=1.0)
    with pytest.raises(BrokenPipeError):
        Run([*hangs, late], emulator, emulator, closed).play()
    lifted = [sent["name"] for _, _, sent in emulator.asked if not sent["on"]]
    assert sorted(lifted) == ["one", "two"]
