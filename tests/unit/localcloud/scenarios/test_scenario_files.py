"""What a scenario file may say, and that everything wrong with it is said at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import localcloud
from localcloud.scenario import KINDS, Event, ScenarioError, read

README = Path(localcloud.__file__).parents[1] / "README.md"


def parsed(folder: Path, text: str) -> list[Event]:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return read(path)


def test_events_have_a_time_or_a_trigger_and_one_fault(tmp_path: Path) -> None:
    events = parsed(
        tmp_path,
        """
events:
  - {at: 1.5m, preempt: my-tpu}
  - {when: {serial: "*-vm", says: "step=40"}, after: 5s, dead: my-tpu}
  - {when: {object: "gs://*/jobs/*/lease.json"}, for: 10, error: {method: storage.*, status: 503}}
  - {at: 0, expire-tokens: vm}
""",
    )
    assert events == [
        Event("preempt", "my-tpu", at=90.0),
        Event("dead", "my-tpu", at=5.0, serial=("*-vm", "step=40")),
        Event(
            "error",
            {"method": "storage.*", "status": 503},
            lasts=10.0,
            found="gs://*/jobs/*/lease.json",
        ),
        Event("expire-tokens", "vm"),
    ]


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ("{at: 5, premept: x}", "unknown fault 'premept'. Known: preempt, "),
        ("{at: 5}", "expected one fault, found none"),
        ("{at: 5, preempt: x, dead: x}", "expected one fault, found preempt, dead"),
        ("{preempt: x}", "expected either `at` or `when`"),
        ("{at: soon, preempt: x}", "at: 'soon' is not a time; write seconds, or 90s, 5m, 2h"),
        ("{at: -1, preempt: x}", "at: -1 is not a time"),
        ("{at: .inf, preempt: x}", "at: inf is not a time"),
        ("{at: 1.2.3, preempt: x}", "at: '1.2.3' is not a time"),
        ("{at: 5, for: 0, hang: x}", "for: 0 is not above 0"),
        ("{at: 5, for: 5, preempt: x}", "for: preempt has no duration"),
        ("{at: 5, after: 5, preempt: x}", "after: use it with `when`"),
        ("{when: {serial: x}, preempt: x}", "when: expected `serial` and `says`, or `object`"),
        ("{when: {serial: x, says: '('}, preempt: x}", "says: '(' is not a regular expression"),
        ("{at: 5, preempt: 7}", "preempt: expected a name, not 7"),
        ("{at: 5, error: {status: 503}}", "error: method is missing"),
        ("{at: 5, error: {method: x, status: 200}}", "error: status must be 400 to 599"),
        ("{at: 5, error: {method: x, count: many}}", "error: count: 'many' is not of type int"),
        (
            "{at: 5, error: {method: x, carried_out: 1}}",
            "error: carried_out: 1 is not of type bool",
        ),
        ("{at: 5, error: {method: x, hours: 1}}", "error: unknown 'hours'"),
        (
            "{at: 5, kill: {machine: x, process: '('}}",
            "kill: process: '(' is not a regular expression",
        ),
        ("{at: 5, stockout: {zone: x, types: [v9]}}", "stockout: 'x' is not a zone with TPUs"),
        ("{at: 5, quota: {metric: x, limit: 1}}", "quota: 'x' is not a TPU quota"),
        ("{at: 5, clock: -3}", "clock: -3 is not a time"),
        ("often", "expected a time and a fault, not 'often'"),
    ],
)
def test_a_wrong_event_is_refused_in_plain_words(tmp_path: Path, event: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        parsed(tmp_path, f"events:\n  - {event}\n")
    assert f"event 1: {problem}" in str(refused.value)


def test_the_readmes_scenario_is_one_and_has_every_kind_but_one(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(events:.*?)```", README.read_text(encoding="utf-8"), re.S)
    kinds = {event.kind for event in parsed(tmp_path, text)}
    assert KINDS.keys() - kinds == {"delete-objects"}


def test_all_mistakes_of_a_scenario_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as refused:
        parsed(tmp_path, "evnts: 1\nevents:\n  - {at: -1, premept: x}\n  - {at: soon, hang: 7}\n")
    assert len(str(refused.value).splitlines()) == 5


@pytest.mark.parametrize("text", ["[]", "events: 3", "events: [", "{}"])
def test_files_without_a_list_of_events_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ScenarioError, match=r"scenario\.yaml: "):
        parsed(tmp_path, text)


def test_a_missing_scenario_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"missing\.yaml"):
        read(tmp_path / "missing.yaml")


def test_keys_that_begin_with_x_are_for_other_programs(tmp_path: Path) -> None:
    assert parsed(tmp_path, "x-stack: {tpu: {}}\nevents: []\n") == []
    with pytest.raises(ScenarioError, match="unknown 'stack'; there is `events`"):
        parsed(tmp_path, "stack: {}\nevents: []\n")
