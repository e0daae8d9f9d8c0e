"""People are told how jobs end: each end once, whatever fails, and never with the URL shown."""

from __future__ import annotations

import base64
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.startup.agent.google import Json
from infra.startup.agent.jobs.messages import Messages, replace, text_of
from infra.startup.agent.messages import Send, senders
from infra.startup.agent.webhook import MessageError, body, post, secret_url

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
    made = {"state": "succeeded", "started": 140.0, "ended": at, "tries": 1, "code": 0}
    return {**made, "reason": "", **more}


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
            raise MessageError("HTTP status 500")
        self.append(text)


def messages(store: MemoryStore, clock: Clock, told: Told) -> Messages:
    return Messages(store, lambda: {"webhook": told}, clock.now, lambda _: None)


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
    with pytest.raises(MessageError):
        one.send({"a": ended()})
    told.fails = False
    one.send({"a": ended()})
    assert len(told) == 1


def test_jobs_of_the_time_before_a_webhook_was_set_are_no_news(
    store: MemoryStore, clock: Clock
) -> None:
    told = Told()
    wanted: list[Told] = []
    one = Messages(
        store, lambda: {"webhook": wanted[0]} if wanted else {}, clock.now, lambda _: None
    )
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
    one = Messages(store, lambda: {"webhook": told}, clock.now, said.append)
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
    with pytest.raises(MessageError, match=f"HTTP status {status}") as refused:
        post(hook.url, "done")
    assert "secret" not in str(refused.value)
    assert len(hook.told) == 1


def test_a_webhook_that_is_gone_is_said_without_its_url(hook: Hook) -> None:
    hook.close()
    with pytest.raises(MessageError) as refused:
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
    with pytest.raises(MessageError, match=f"{SECRET} holds no https:// URL") as refused:
        secret_url(answer(text), SECRET)
    assert "very" not in str(refused.value)


def test_one_who_is_out_of_reach_keeps_nobody_else_from_being_told_and_is_told_later(
    store: MemoryStore, clock: Clock
) -> None:
    broken, mailed = Told(), Told()
    broken.fails = True
    one = Messages(store, lambda: {"webhook": broken, "log": mailed}, clock.now, lambda _: None)
    for _ in range(2):
        with pytest.raises(MessageError):
            one.send({"a": ended()})
    broken.fails = False
    one.send({"a": ended()})
    assert (len(broken), len(mailed)) == (1, 1)


def test_who_is_named_later_is_not_told_what_was_before(store: MemoryStore, clock: Clock) -> None:
    first, later = Told(), Told()
    targets: dict[str, Send] = {"webhook": first}
    one = Messages(store, lambda: targets, clock.now, lambda _: None)
    one.send({"a": ended(150.0)})
    clock.seconds = 300.0
    targets["log"] = later
    one.send({"a": ended(150.0), "b": ended(301.0)})
    assert [text.split()[0] for text in first] == ["a", "b"]
    assert [text.split()[0] for text in later] == ["b"]


class Calls(list[tuple[str, Json]]):
    """What Google was sent; it answers with a status."""

    status = 200

    def __call__(self, method: str, url: str, sent: str | None) -> tuple[int, Json]:
        assert method == "POST"
        self.append((url, json.loads(sent or "")))
        return self.status, {"error": {"message": "denied"}}


def told_by(kind: str, target: str, calls: Calls) -> Callable[[str], None]:
    return senders(lambda _: json.dumps({kind: target}), calls)()[kind]


def test_a_topic_gets_the_text_itself() -> None:
    calls = Calls()
    told_by("topic", "projects/p/topics/t", calls)("j is failed\nü")
    ((url, sent),) = calls
    assert url == "https://pubsub.googleapis.com/v1/projects/p/topics/t:publish"
    assert base64.b64decode(sent["messages"][0]["data"]).decode() == "j is failed\nü"


def test_the_first_line_of_what_is_mailed_is_its_subject() -> None:
    calls = Calls()
    told_by("log", "projects/p/logs/x-messages", calls)("j is failed\ngs://b/jobs/j/")
    ((url, sent),) = calls
    assert url == "https://logging.googleapis.com/v2/entries:write"
    (entry,) = sent["entries"]
    assert entry["logName"] == "projects/p/logs/x-messages"
    assert entry["jsonPayload"] == {
        "subject": "j is failed",
        "text": "j is failed\ngs://b/jobs/j/",
    }


def test_what_google_refuses_is_said_with_its_own_words() -> None:
    calls = Calls()
    calls.status = 403
    with pytest.raises(MessageError, match="topics/t can't be told: HTTP status 403: denied"):
        told_by("topic", "projects/p/topics/t", calls)("x")


def test_nobody_is_told_where_the_metadata_names_nobody() -> None:
    assert senders(lambda _: None, Calls())() == {}


def test_a_damaged_mark_stops_no_message(store: MemoryStore, clock: Clock) -> None:
    store.write("messages/webhook/since", b"yesterday")
    told: list[str] = []
    made = Messages(store, lambda: {"webhook": told.append}, clock.now, told.append)
    made.send({})
    assert told == ["messages/webhook/since is set aside: it is no number of seconds"]
