"""Tell people something: a webhook, a Pub/Sub topic, and whoever gets mail of a log's entries.

The machine's metadata says whom, at each message anew. A topic's messages and a log's entries are
written as the machine's account, which may publish to this topic only.
https://cloud.google.com/pubsub/docs/reference/rest/v1/projects.topics/publish
https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/write
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

from .google import Call, Json, message
from .webhook import MessageError, post, secret_url

ATTRIBUTE = "messages"
Send = Callable[[str], None]
"""Tells one target a text. Raises MessageError or OSError."""
Senders = Callable[[], dict[str, Send]]
"""Looks whom to tell now, by the target's kind."""
_TOPICS = "https://pubsub.googleapis.com/v1/"
_LOGS = "https://logging.googleapis.com/v2/entries:write"
# The longest value of a label, as far as mails have it; the log has all.
_LONGEST_SUBJECT = 200


def wanted(attribute: Callable[[str], str | None]) -> Json:
    """Return what the machine's metadata says of messages."""
    return dict(json.loads(attribute(ATTRIBUTE) or "{}"))


def senders(attribute: Callable[[str], str | None], call: Call) -> Senders:
    """Return what looks whom to tell.

    Args:
        attribute: returns a metadata value of the machine, or None.
        call: calls Google as the machine's account.
    """
    kinds: dict[str, Callable[[str, str], None]] = {
        "webhook": lambda secret, text: post(secret_url(call, secret), text),
        "topic": lambda topic, text: _publish(call, topic, text),
        "log": lambda log, text: _write(call, log, text),
    }

    def look() -> dict[str, Send]:
        said = wanted(attribute)
        return {kind: _to(send, str(said[kind])) for kind, send in kinds.items() if kind in said}

    return look


def tell_each(senders: dict[str, Send], tell: Callable[[str, Send], None]) -> Exception | None:
    """Have `tell` tell those of each kind by themselves: others may be out of reach.

    Returns:
        The last failure, of whatever kind: a message is not worth an agent.
    """
    failed = None
    for kind, send in senders.items():
        try:
            tell(kind, send)
        except Exception as error:
            failed = error
    return failed


def _to(send: Callable[[str, str], None], target: str) -> Send:
    return lambda text: send(target, text)


def _publish(call: Call, topic: str, text: str) -> None:
    data = base64.b64encode(text.encode()).decode()
    _post(call, f"{_TOPICS}{topic}:publish", topic, {"messages": [{"data": data}]})


def _write(call: Call, log: str, text: str) -> None:
    """Write an entry; what gets mail of it takes the subject and the text out of it."""
    project = log.split("/")[1]
    entry = {
        "logName": log,
        "resource": {"type": "global", "labels": {"project_id": project}},
        "severity": "NOTICE",
        "jsonPayload": {"subject": text.partition("\n")[0][:_LONGEST_SUBJECT], "text": text},
    }
    _post(call, _LOGS, log, {"entries": [entry]})


def _post(call: Call, url: str, target: str, body: Json) -> None:
    status, answer = call("POST", url, json.dumps(body))
    if status != 200:
        raise MessageError(f"{target} can't be told: HTTP status {status}: {message(answer)}")
