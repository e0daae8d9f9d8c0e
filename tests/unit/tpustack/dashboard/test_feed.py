"""The stream of all that the page shows, and the sources behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from localcloud import faults
from localcloud.core import projects
from localcloud.testing import Client
from tests.unit.tpustack.conftest import Run
from tests.unit.tpustack.dashboard.conftest import ZONE, a_stack, make_tpu
from tpu_agent.jobs.queue import Queue
from tpustack.cloud.google import Google
from tpustack.dashboard.server import feed
from tpustack.dashboard.sources import Place, Source, places, sources, tpus_of_zone
from tpustack.errors import TpustackError, UsageError


def first(found: Sequence[Source], count: int) -> list[dict[str, Any]]:
    """The first messages of a stream."""

    async def read() -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        async for line in feed(found):
            if line.strip():
                said.append(json.loads(line))
            if len(said) == count:
                break
        return said

    # asyncio.run would leave this thread without a loop, which tests of Pulumi's programs need.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(read())
    finally:
        loop.close()


def test_a_bucket_alone_shows_jobs_tpus_and_trainings(
    queue: Queue, google: Google, place: Place
) -> None:
    queue.store.write("runners/a-tpu.json", b"{}")
    said = {each["topic"]: each for each in first(sources([place], google), 4)}
    assert [job["name"] for job in said["jobs"]["data"]] == ["runs", "waits"]
    assert [(tpu["name"], tpu["state"]) for tpu in said["tpus"]["data"]] == [("a-tpu", "IN USE")]
    assert said["trainings"]["data"] == []
    assert said["stacks"]["data"][0]["isStack"] is False
    assert {each["problem"] for each in said.values()} == {""}


def test_a_source_sends_only_changes() -> None:
    answers = iter([[{"n": 1}], [{"n": 1}], [{"n": 1}], [{"n": 2}]])
    source = Source("jobs", "p", 0.0, lambda: next(answers, [{"n": 2}]))
    assert [each["data"][0]["n"] for each in first([source], 2)] == [1, 2]


def test_an_unreadable_source_hides_no_other() -> None:
    def refused() -> list[dict[str, Any]]:
        raise TpustackError("you may not")

    found = [Source("jobs", "a", 60, refused), Source("jobs", "b", 60, lambda: [{"name": "x"}])]
    said = {each["place"]: each for each in first(found, 2)}
    assert (said["a"]["problem"], said["b"]["data"]) == ("you may not", [{"name": "x"}])


def test_preempted_and_absent_tpus_are_shown_as_such(client: Client, google: Google) -> None:
    project = projects.DEFAULT_PROJECT
    make_tpu(client, "a")
    wanted = {"a": a_stack("dev"), "b": a_stack("prod")}
    before = tpus_of_zone(google, (project, ZONE), wanted)
    assert [(row["name"], row["place"], row["state"]) for row in before] == [
        ("a", "dev", "READY"),
        ("b", "prod", "ABSENT"),
    ]
    elsewhere = "us-central1-c"
    make_tpu(client, "m", elsewhere)
    moved = a_stack("moved", queued={"fallbackZones": ["us-central1-a", elsewhere]})
    (row,) = tpus_of_zone(google, (project, ZONE), {"m": moved})
    assert (row["zone"], row["state"]) == (elsewhere, "READY")
    faults.put(client.local_cloud.cloud, "preempt", {"name": "a"})
    assert tpus_of_zone(google, (project, ZONE), wanted)[0]["state"] == "PREEMPTED"


def test_all_stacks_are_shown_when_none_is_named_and_a_wrong_file_hides_no_other(
    project: Path,
) -> None:
    (project / "stacks" / "Pulumi.broken.yaml").write_text("config: {tpu-stack:zone: 7}\n")
    found = {place.name: place for place in places((), ())}
    assert {"broken", "dev", "prod"} <= set(found)
    assert "gcp:project" in found["broken"].problem
    assert found["dev"].bucket


def test_all_wrong_names_are_reported_at_once(project: Path) -> None:
    with pytest.raises(UsageError) as told:
        places(("none", "dev"), ("s3://x",))
    assert "has no file Pulumi.none.yaml" in str(told.value)
    assert "s3://x is not a bucket" in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--bucket", "x"), "--bucket: x is not a bucket. Write it like gs://BUCKET"),
        (("--stack", "none"), "has no file Pulumi.none.yaml"),
        (("--port", "70000"), "70000 is not in the range"),
    ],
)
def test_a_wrong_option_ends_the_command_with_one_message(
    run: Run, project: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run("dashboard", *arguments)
    assert done.code == 2
    assert said in done.err


def test_a_source_reports_any_failure_and_is_read_again() -> None:
    answers: Iterator[Any] = iter([KeyError("[/x]"), [{"loss": float("nan")}], [{"loss": 1.0}]])

    def read() -> list[dict[str, Any]]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    said = first([Source("jobs", "p", 0.01, read)], 3)
    assert [each["data"] for each in said] == [[], [], [{"loss": 1.0}]]
    assert "KeyError" in said[0]["problem"]
    assert "JSON compliant" in said[1]["problem"]
    assert {each["topic"] for each in said} == {"jobs"}


def test_a_damaged_record_is_reported_and_hides_no_other_job(
    queue: Queue, google: Google, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = {**queue.summaries()["waits"], "format": 1}
    queue.store.write("queue/[/x].json", b"{}", summary=summary)
    for name, wrong in {"started": "x", "state": 5, "priority": float("nan")}.items():
        queue.store.write(f"queue/bad-{name}.json", b"{}", summary={**summary, name: wrong})
    jobs = next(one for one in sources([place], google) if one.topic == "jobs")
    for _ in range(2):
        said = jobs.message()
        assert ([job["name"] for job in said["data"]], said["problem"]) == (["runs", "waits"], "")
    assert capsys.readouterr().err.count("is set aside") == 4
