"""People are told how jobs end: each end once, whatever fails, and never with the URL shown."""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from infra.startup.agent.google import Json
from infra.startup.agent.jobs.messages import Messages, replace, text_of
from infra.startup.agent.webhook import WebhookError, body, post, quietly, secret_url, teller

from .hook import Hook
from .memory import Bucket, Clock, MemoryStore

SECRET = "projects/p/secrets/webhook"
SLACK = "https://hooks.slack.com/services/T0/B0/very-secret"
DISCORD = "https://discord.com/api/webhooks/1/very-secret"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Hook()
    yield made
    made.close()


def ended(at: float = 200.0, **more: Any) -> Json:
    return {"state": "succeeded", "started": 140.0, "ended": at, "tries": 1, "code": 0, **more}


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(Bucket(clock))


class Told(list[str]):
    """Texts that were sent, unless sending fails."""

    fails = False

    def __call__(self, text: str) -> None:
        if self.fails:
            raise WebhookError("HTTP status 500")
        self.append(text)


def messages(store: MemoryStore, clock: Clock, told: Told) -> Messages:
    return Messages(store, lambda: told, clock.now, lambda _: None)


def test_each_end_is_told_once_also_by_the_next_runner(store: MemoryStore, clock: Clock) -> None:
    told = Told()
    first = messages(store, clock, told)
    first.send({"r": {"state": "running"}, "q": {"state": "queued"}})
    first.send({"a": ended()})
    first.send({"a": ended(), "b": ended()})
    messages(store, clock, told).send({"a": ended(), "b": ended()})
    assert [text.split()[0] for text in told] == ["a", "b"]


def test_what_could_not_be_sent_is_sent_later(store: MemoryStore, clock: Clock) -> None:
    told = Told()
    told.fails = True
    one = messages(store, clock, told)
    with pytest.raises(WebhookError):
        one.send({"a": ended()})
    told.fails = False
    one.send({"a": ended()})
    assert len(told) == 1


def test_jobs_of_the_time_before_a_webhook_was_set_are_no_news(
    store: MemoryStore, clock: Clock
) -> None:
    told = Told()
    wanted: list[Told] = []
    one = Messages(store, lambda: wanted[0] if wanted else None, clock.now, lambda _: None)
    one.send({"old": ended(99.0)})
    clock.seconds = 300.0
    wanted.append(told)
    one.send({"old": ended(99.0), "before": ended(299.0), "after": ended(301.0)})
    assert [text.split()[0] for text in told] == ["after"]


def test_a_day_later_an_end_is_no_news(store: MemoryStore, clock: Clock) -> None:
    told = Told()
    one = messages(store, clock, told)
    one.send({})
    clock.seconds = 200.0 + 86401
    one.send({"a": ended(200.0)})
    assert told == []


def test_a_webhook_that_fails_is_asked_less_and_less_and_the_newest_list_counts(
    store: MemoryStore, clock: Clock
) -> None:
    told = Told()
    said: list[str] = []
    pauses: list[float] = []
    told.fails = True
    one = Messages(store, lambda: told, clock.now, said.append)
    news: queue.Queue[Any] = queue.Queue()
    news.put({"a": ended()})

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 12:
            told.fails = False
            news.put({"a": ended(), "b": ended()})
        if len(pauses) > 12:
            raise SystemExit

    thread = threading.Thread(target=one.keep, args=(news, sleep), daemon=True)
    thread.start()
    while len(told) < 2:
        thread.join(0.01)
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert said == ["a message could not be sent, trying again: HTTP status 500"]


def test_lists_that_nobody_reads_do_not_pile_up() -> None:
    news: queue.Queue[Any] = queue.Queue(1)
    for number in range(3):
        replace(news, {str(number): ended()})
    assert list(news.get_nowait()) == ["2"]
    assert news.empty()


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (ended(), "j has succeeded after 1.0 min\ngs://b/jobs/j/"),
        (
            ended(state="failed", code=7, reason="exit code 7; it was started again 2 times"),
            "j is failed (exit code 7) after 1.0 min: exit code 7; it was started again 2 times\n"
            "gs://b/jobs/j/",
        ),
        (
            ended(state="failed", code=1, tries=11, reason="the TPU is gone; started again 10x"),
            "j is failed (exit code 1) after 1.0 min in its try 11: the TPU is gone; started "
            "again 10x\ngs://b/jobs/j/",
        ),
        (
            ended(state="stopped", code=143, tries=0, started=None, reason="ada stopped it"),
            "j is stopped (exit code 143): ada stopped it\ngs://b/jobs/j/",
        ),
    ],
)
def test_the_text_says_how_it_ended_and_where_it_lies(job: Json, text: str) -> None:
    assert text_of("j", job, "b") == text


def test_slack_and_discord_get_their_forms_and_mention_nobody() -> None:
    assert body(SLACK, "<!channel> a&b") == {"text": "&lt;!channel&gt; a&amp;b"}
    assert body(DISCORD, "@everyone") == {
        "content": "@everyone",
        "allowed_mentions": {"parse": []},
    }
    assert body(f"{DISCORD}/slack", "x") == {"text": "x"}
    assert len(body(DISCORD, "x" * 9999)["content"]) <= 2000


def test_a_webhook_is_told(hook: Hook) -> None:
    post(hook.url, "done")
    assert hook.told == [{"text": "done"}]


@pytest.mark.parametrize("status", [302, 307, 404, 500])
def test_what_the_webhook_refuses_is_said_without_its_url(hook: Hook, status: int) -> None:
    hook.status = status
    with pytest.raises(WebhookError, match=f"HTTP status {status}") as refused:
        post(hook.url, "done")
    assert "secret" not in str(refused.value)
    assert len(hook.told) == 1


def test_a_webhook_that_is_gone_is_said_without_its_url(hook: Hook) -> None:
    hook.close()
    with pytest.raises(WebhookError) as refused:
        post(hook.url, "done")
    assert "secret" not in str(refused.value)


def answer(text: bytes) -> Any:
    data = base64.b64encode(text).decode()
    return lambda method, url, sent: (200, {"payload": {"data": data}})


def test_the_url_is_what_the_secret_holds_now() -> None:
    assert secret_url(answer(SLACK.encode() + b"\n"), SECRET) == SLACK


@pytest.mark.parametrize(
    "text",
    [b"", b"http://example.com/very-secret", b"very-secret", b"https://a/very secret",
     b"https://a/very-secret\nx", b"\xff", b"file:///very-secret", b"https://[very-secret"],
)  # fmt: skip
def test_a_secret_that_holds_no_safe_url_is_refused_without_showing_it(text: bytes) -> None:
    with pytest.raises(WebhookError, match=f"{SECRET} holds no https:// URL") as refused:
        secret_url(answer(text), SECRET)
    assert "very" not in str(refused.value)


def test_a_limit_is_told_and_no_failure_of_that_goes_further(hook: Hook) -> None:
    said: list[str] = []
    quietly(teller(lambda _: SECRET, answer(hook.url.encode())), said.append)("t is stopped")
    assert (hook.told, said) == ([{"text": "t is stopped"}], [])
    denied = {"error": {"message": "denied"}}
    quietly(teller(lambda _: SECRET, lambda *_: (403, denied)), said.append)("t is stopped")
    quietly(teller(lambda _: None, lambda *_: (403, denied)), said.append)("t is stopped")
    assert said == [f"a message could not be sent: {SECRET} can't be read: HTTP status 403: denied"]
