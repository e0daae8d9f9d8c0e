"""What cannot be told now waits on the disk, and reaches everybody once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.startup.agent.messages import Send, senders
from infra.startup.agent.outbox import Outbox
from infra.startup.agent.webhook import MessageError
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.services.logging import ENTRY
from localcloud.testing import Client

from .conftest import PROJECT, caller


class World:
    """Targets, of which some are out of reach, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "outbox"
        self.told: list[tuple[str, str]] = []
        self.out_of_reach: set[str] = set()
        self.said: list[str] = []
        self.now = 100.0

    def outbox(self) -> Outbox:
        return Outbox(self.folder, self.senders, lambda: self.now, self.said.append)

    def senders(self) -> dict[str, Send]:
        return {kind: self._sender(kind) for kind in ("webhook", "topic")}

    def _sender(self, kind: str) -> Send:
        def send(text: str) -> None:
            if kind in self.out_of_reach:
                raise MessageError(f"the {kind} is out of reach")
            self.told.append((kind, text))

        return send


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_everybody_is_told_at_once_and_nothing_is_left(world: World) -> None:
    outbox = world.outbox()
    outbox.tell("done")
    outbox.flush()
    assert world.told == [("webhook", "done"), ("topic", "done")]
    assert list(world.folder.iterdir()) == []


def test_whom_it_has_not_reached_is_told_later_also_by_another_agent(world: World) -> None:
    world.out_of_reach = {"webhook"}
    outbox = world.outbox()
    outbox.tell("done")
    outbox.flush()
    world.out_of_reach = set()
    world.outbox().flush()
    world.outbox().flush()
    assert world.told == [("topic", "done"), ("webhook", "done")]
    assert world.said == ["a message could not be sent, trying again: the webhook is out of reach"]


def test_a_day_later_it_is_no_news(world: World) -> None:
    world.out_of_reach = {"webhook", "topic"}
    outbox = world.outbox()
    outbox.tell("done")
    world.now += 86401.0
    outbox.flush()
    world.out_of_reach = set()
    outbox.flush()
    assert world.told == []
    assert list(world.folder.iterdir()) == []


def test_a_damaged_message_is_dropped_and_hides_no_other(world: World) -> None:
    world.folder.mkdir()
    (world.folder / "1.json").write_text("{")
    world.out_of_reach = {"topic"}
    world.outbox().tell("done")
    world.out_of_reach = set()
    world.outbox().flush()
    assert world.told == [("webhook", "done"), ("topic", "done")]


def test_where_the_disk_is_full_everybody_is_told_all_the_same(world: World) -> None:
    world.folder.write_text("no folder")
    world.outbox().tell("done")
    assert world.told == [("webhook", "done"), ("topic", "done")]


def test_what_the_agent_writes_and_publishes_is_what_google_takes(
    local_cloud: LocalCloud, google: Client
) -> None:
    projects.enable_services(local_cloud.cloud, PROJECT, ("pubsub.googleapis.com",))
    topic, log = f"projects/{PROJECT}/topics/messages", f"projects/{PROJECT}/logs/messages"
    google.put(f"pubsub.googleapis.com/v1/{topic}", {})
    said = json.dumps({"topic": topic, "log": log})
    for send in senders(lambda _: said, caller(local_cloud))().values():
        send("j is failed\nü")
    (entry,) = [entry for _, entry in local_cloud.cloud.store.items(ENTRY)]
    assert entry["jsonPayload"] == {"subject": "j is failed", "text": "j is failed\nü"}
