"""Objects in the queue that no release has written: each is set aside, and stops no other job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.unit.agent.jobs.memory import Bucket, Clock, Machine, MemoryStore, Thing
from tpu_agent.jobs.queue import ENDED, RUNNING, Job, Queue, Spec, Summary, Try, parse
from tpu_core.records import FORMAT, Unreadable, sound

TRY = Try(1, "m", "m", "t", 5.0, 6.0, "exited", 1)
JOB = Job("bad", "id", Spec("true", env={"A": "1"}, after=("one",)), 1.0, tries=(TRY,))


def poisoned(*where: str | int, value: Any) -> bytes:
    """A record with another value at a place."""
    content = json.loads(JOB.to_json())
    place = content
    for name in where[:-1]:
        place = place[name]
    place[where[-1]] = value
    return json.dumps(content).encode()


POISON = {
    "no JSON": (b"{", "it is not JSON: Expecting"),
    "JSON without an end": (b"[" * 100_000, "it is not JSON: maximum recursion"),
    "no object": (b"[1]", "it is not a JSON object"),
    "no format": (poisoned("format", value=None), "its format is None; this release reads 1"),
    "later": (poisoned("format", value=2), "its format is 2; this release reads 1"),
    "nearly": (poisoned("format", value=True), "its format is True; this release reads 1"),
    "a number": (poisoned("spec", "command", value=7), "spec.command is 7, not str"),
    "a text": (
        poisoned("spec", "priority", value="high"),
        "spec.priority is 'high', not int",
    ),
    "a huge number": (poisoned("spec", "priority", value=10**400), "spec.priority is 1000"),
    "no list": (poisoned("spec", "after", value=1), "spec.after is 1, not tuple"),
    "a path to wait for": (
        poisoned("spec", "after", value=["../x"]),
        "invalid spec.after",
    ),
    "a list": (poisoned("spec", "env", value=["A"]), "spec.env is ['A'], not dict"),
    "a list of numbers": (poisoned("spec", "env", value={"A": 1}), "spec.env.A is 1, not str"),
    "half a pair": (poisoned("spec", "command", value="\ud800"), "spec.command is '\\ud800', not"),
    "not float": (poisoned("submitted", value=float("nan")), "submitted is nan, not float"),
    "beyond time": (poisoned("submitted", value=1e15), "invalid times"),
    "unknown": (poisoned("colour", value="red"), "its field colour is unknown"),
    "another's": (poisoned("name", value="good"), "invalid name"),
    "a try": (poisoned("tries", 0, "number", value=3), "invalid tries"),
    "untried": (
        Job("bad", "id", Spec("true"), 1.0, state=RUNNING).to_json(),
        "invalid state",
    ),
    "no wheel": (
        Job("bad", "id", Spec("true", kind="wheel", source="/etc/x"), 1.0).to_json(),
        "invalid spec.source",
    ),
    "an option of Docker": (
        poisoned("spec", "image", value="--volume=/:/host"),
        "invalid spec.image",
    ),
    "an image with packages": (
        Job("bad", "id", Spec("true", image="a", requirements="x"), 1.0).to_json(),
        "invalid spec.image",
    ),
    "a path to fetch": (
        poisoned("spec", "archive", value="../jobs/x"),
        "invalid spec.archive",
    ),
}


def machine(bucket: Bucket, disk: Path) -> Machine:
    return Machine("m", bucket, disk, lambda _: (0.5, 0), lambda: None)


def runs_the_sound_job(bucket: Bucket, one: Machine) -> None:
    Queue(MemoryStore(bucket), print).add(Job("good", "id", Spec("true"), 9.0))
    while bucket.states["good"][-1] not in ENDED:
        bucket.clock.seconds += 5.0
        assert bucket.clock.seconds < 300.0
        one.step()
    assert one.started == [("good", 1)]


@pytest.mark.parametrize("state", ["queued", "running"])
@pytest.mark.parametrize("name", POISON)
def test_a_poisoned_record_stops_no_other_job_and_is_said_once(
    name: str, state: str, tmp_path: Path
) -> None:
    data, why = POISON[name]
    bucket = Bucket(Clock())
    summary = {**JOB.summary(), "state": state, "tpu": "t", "after": [], "priority": 9}
    bucket.things["queue/bad.json"] = Thing(data, 1, 1, summary, 0.0)
    one = machine(bucket, tmp_path)
    runs_the_sound_job(bucket, one)
    told = [line for line in one.said if "bad" in line]
    assert len(told) == 1
    assert told[0].startswith(f"queue/bad.json is set aside: {why}")
    assert bucket.things["queue/bad.json"].data == data


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("priority", "high"),
        ("priority", 10**400),
        ("after", 1),
        ("after", [1]),
        ("submitted", "x"),
        ("submitted", float("nan")),
        ("started", "x"),
        ("more", 1),
        ("code", [1]),
    ],
)
def test_a_poisoned_summary_stops_no_other_job(field: str, value: Any, tmp_path: Path) -> None:
    bucket = Bucket(Clock())
    summary = {**JOB.summary(), field: value}
    bucket.things["queue/bad.json"] = Thing(JOB.to_json(), 1, 1, summary, 0.0)
    one = machine(bucket, tmp_path)
    runs_the_sound_job(bucket, one)
    assert len([line for line in one.said if "bad" in line]) == 1


@pytest.mark.parametrize("path", ["../../../tmp/x", "[/x]", "\x1b[2J", "A", "", ".x", "a/b"])
def test_no_name_that_no_job_may_have_becomes_a_path(path: str, tmp_path: Path) -> None:
    bucket = Bucket(Clock())
    job = Job(path, "id", Spec("true", priority=9), 1.0)
    bucket.things[f"queue/{path}.json"] = Thing(job.to_json(), 1, 1, job.summary(), 0.0)
    one = machine(bucket, tmp_path / "deep" / "disk")
    runs_the_sound_job(bucket, one)
    assert [file.name for file in tmp_path.iterdir()] == ["deep"]
    (told,) = [line for line in one.said if "set aside" in line]
    assert told.isprintable()


def test_a_record_that_is_mended_is_run(tmp_path: Path) -> None:
    bucket = Bucket(Clock())
    bucket.things["queue/bad.json"] = Thing(b"{", 1, 1, JOB.summary(), 0.0)
    one = machine(bucket, tmp_path)
    runs_the_sound_job(bucket, one)
    job = Job("bad", "id", Spec("true"), 1.0)
    MemoryStore(bucket).write("queue/bad.json", job.to_json(), generation=1, summary=job.summary())
    while bucket.states["bad"][-1] not in ENDED:
        bucket.clock.seconds += 5.0
        assert bucket.clock.seconds < 600.0
        one.step()


def test_whatever_else_is_wrong_with_a_job_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(job: Job, *_: object) -> Job:
        if job.name == "bad":
            raise RecursionError("what no check foresaw")
        return Job(**{**vars(job), "state": RUNNING, "tries": (Try(1, "m", "m", "t", 1.0),)})

    monkeypatch.setattr(Job, "started", fail)
    bucket = Bucket(Clock())
    Queue(MemoryStore(bucket), print).add(Job("bad", "id", Spec("true", priority=9), 1.0))
    one = machine(bucket, tmp_path)
    runs_the_sound_job(bucket, one)
    assert "bad is skipped: RecursionError: what no check foresaw" in one.said


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORD = json.loads(JOB.to_json())


@pytest.mark.slow
@given(
    st.sampled_from([*RECORD, "more"]), st.sampled_from([None, *RECORD["spec"], *vars(TRY)]), JSON
)
def test_whatever_a_record_says_it_is_a_job_or_unreadable(
    name: str, inner: str | None, value: Any
) -> None:
    content = json.loads(JOB.to_json())
    if inner is None:
        content[name] = value
    else:
        (content["tries"][0] if inner in vars(TRY) else content["spec"])[inner] = value
    try:
        job = parse(json.dumps(content).encode(), "bad")
    except Unreadable:
        return
    assert parse(job.to_json(), "bad") == job
    assert sound(Summary, json.loads(json.dumps(job.summary()))).state == job.state


def test_what_is_written_has_a_format() -> None:
    assert json.loads(JOB.to_json())["format"] == FORMAT
    assert JOB.summary()["format"] == FORMAT
    assert parse(JOB.to_json(), "bad") == JOB
