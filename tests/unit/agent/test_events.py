"""Each event is one entry of the stack's log, and none disturbs the agent."""

from __future__ import annotations

import json

import pytest

from tpu_agent.jobs.queue import FAILED, STOPPED, SUCCEEDED, Job, Spec, Try
from tpu_agent.jobs.runner import _report
from tpu_agent.main import Events
from tpu_core.google import Json

LOG = "projects/p/logs/x-messages"


class Calls(list[tuple[str, Json]]):
    """What Google was sent; it answers with a status."""

    status = 200

    def __call__(self, method: str, url: str, sent: str | None) -> tuple[int, Json]:
        assert method == "POST"
        self.append((url, json.loads(sent or "")))
        return self.status, {"error": {"message": "denied"}}


@pytest.fixture
def said() -> list[str]:
    return []


def test_an_entry_has_the_event_its_first_line_as_subject_and_the_text(said: list[str]) -> None:
    calls = Calls()
    Events(lambda _: json.dumps({"log": LOG}), calls, said.append).report("job", "j is failed\nü")
    ((url, sent),) = calls
    assert url == "https://logging.googleapis.com/v2/entries:write"
    (entry,) = sent["entries"]
    assert (entry["logName"], entry["severity"]) == (LOG, "NOTICE")
    assert entry["jsonPayload"] == {
        "event": "job",
        "subject": "j is failed",
        "text": "j is failed\nü",
    }
    assert said == []


def test_what_google_refuses_is_said_and_ends_nothing(said: list[str]) -> None:
    calls = Calls()
    calls.status = 403
    Events(lambda _: json.dumps({"log": LOG}), calls, said.append).report("limits", "x")
    assert said == [f"an event could not be logged: HTTP status 403 for {LOG}: denied"]


@pytest.mark.parametrize("metadata", [None, "{}", '{"cost": {"dollars": 1}}'])
def test_nothing_is_written_where_the_stack_has_no_log(
    metadata: str | None, said: list[str]
) -> None:
    calls = Calls()
    Events(lambda _: metadata, calls, said.append).report("limits", "x")
    assert (calls, said) == ([], [])


def test_damaged_metadata_ends_nothing(said: list[str]) -> None:
    Events(lambda _: "{", Calls(), said.append).report("limits", "x")
    assert said[0].startswith("an event could not be logged: ")


def ended(state: str, code: int, reason: str = "", tries: int = 1) -> Job:
    each = tuple(Try(n, "1", "m", "t", 140.0) for n in range(1, tries + 1))
    return Job(
        "j", "id", Spec("x"), 1.0, state=state, tries=each, reason=reason, code=code, ended=200.0
    )


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (ended(SUCCEEDED, 0), "j has succeeded after 1.0 min"),
        (
            ended(FAILED, 7, "exit code 7 (further attempts: 2)"),
            "j is failed (exit code 7) after 1.0 min: exit code 7 (further attempts: 2)",
        ),
        (
            ended(FAILED, 1, "the TPU is gone", tries=11),
            "j is failed (exit code 1) after 1.0 min in its attempt 11: the TPU is gone",
        ),
        (ended(STOPPED, 143, "it was stopped", 0), "j is stopped (exit code 143): it was stopped"),
    ],
)
def test_a_report_says_how_a_job_ended_and_where_its_results_are(job: Job, text: str) -> None:
    assert _report(job, "b") == f"{text}\ngs://b/jobs/j/"
