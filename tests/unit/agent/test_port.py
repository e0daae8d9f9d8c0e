"""The agent says within two minutes of READY that its VM does not get through to the TPU."""

from __future__ import annotations

from typing import Any

import pytest

from tpu_agent import main
from tpu_agent.recovery import World
from tpu_core.tpu import Place

PLACE = Place("p", "us-central1-a", "a-bucket")
ENDPOINT = {"ipAddress": "10.0.0.2", "port": 8470}


class Site:
    """A TPU that is READY after a while, and whose port may answer later, or never."""

    def __init__(self, *, ready: float = 0.0, answers: float | None = None, **node: Any) -> None:
        self.now, self.said, self.told = 1000.0, list[str](), list[str]()
        self._ready, self._answers, self._node = 1000.0 + ready, answers, node

    def watch(self) -> None:
        world = World(
            lambda: self.now, self.said.append, self.silent, lambda: 0.5, self.told.append
        )
        main.watch_port(PLACE, self.call, "t", world, self.sleep)

    def call(self, method: str, url: str, body: str | None) -> tuple[int, dict[str, Any]]:
        state = "READY" if self.now >= self._ready else "CREATING"
        return 200, {"state": state, "networkEndpoints": [ENDPOINT], **self._node}

    def silent(self, host: str, number: int) -> str | None:
        assert (host, number) == ("10.0.0.2", 8470)
        answers = self._answers is not None and self.now >= self._ready + self._answers
        return None if answers else "no answer in 3 s"

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_port_that_answers_is_no_news() -> None:
    site = Site(ready=600.0, answers=60.0)
    site.watch()
    assert (site.said, site.told, site.now) == ([], [], 1660.0)


def test_a_silent_port_is_told_within_two_minutes_with_the_way_that_google_documents() -> None:
    site = Site(ready=600.0)
    site.watch()
    assert site.now - 1600.0 <= 120.0
    (said,) = site.said
    assert said.startswith("t is READY, but 10.0.0.2:8470 does not answer (no answer in 3 s)")
    assert "training.runOn: tpu" in said
    assert site.told == [said]


@pytest.mark.parametrize(("answers", "said"), [(600.0, 0), (None, 1)])
def test_a_worker_that_has_to_be_installed_first_gets_the_time_for_it(
    answers: float | None, said: int
) -> None:
    site = Site(answers=answers, metadata={"startup-script": "#!/bin/bash"})
    site.watch()
    assert len(site.said) == said


def test_a_question_that_is_refused_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(answers=0.0)
    asked, answers = site.call, iter((status, dict[str, Any]()) for status in (403, 404, 503))
    monkeypatch.setattr(site, "call", lambda *what: next(answers, None) or asked(*what))
    site.watch()
    assert site.said == []
