"""Notes and locks in a bucket of the local cloud, also where an answer is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pulumi import automation

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client, session
from tpu_core.google import Answer, Body, Send
from tpustack.cloud.google import Google
from tpustack.commands import init
from tpustack.errors import TpustackError
from tpustack.recovery import locks
from tpustack.recovery.locks import Note, locks_in, noted_engines
from tpustack.recovery.repair import Recovery

NAME = "my-project-pulumi-state"
LOCKS = ".pulumi/locks/organization/tpu-stack/dev"
URLS = [f"gs://{NAME}", f"gs://{NAME}/team"]
REFUSED = "{}/{}/{}.json: created by ada@laptop (pid 42) at 2026-11-21T10:00:00Z"


class Lossy:
    """Carries each call out; loses the answers to those of one verb."""

    loses = ""

    def __init__(self, inner: Send) -> None:
        self.inner = inner

    def __call__(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        answer = self.inner(method, url, headers, body)
        if method == Lossy.loses:
            raise OSError("the answer is lost")
        return answer


@pytest.fixture(autouse=True)
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    made = LocalCloud(tmp_path / "home", clock=VirtualClock())
    made.start()
    google = Google(session(made))
    init.ensure_state_bucket(google, NAME, DEFAULT_PROJECT, "us-central1")
    monkeypatch.setattr(locks, "Google", lambda: Google(Lossy(session(made))))
    monkeypatch.setattr(Lossy, "loses", "")
    yield made
    made.stop()


def names(cloud: LocalCloud) -> list[str]:
    listed = Client(cloud).get(f"storage.googleapis.com/storage/v1/b/{NAME}/o")
    return [each["name"] for each in listed.get("items", [])]


def opened(url: str) -> locks.StateBucket:
    made = locks.store_of({"PULUMI_BACKEND_URL": url})
    assert isinstance(made, locks.StateBucket)
    return made


def recovery(url: str) -> Recovery:
    variables = {"PULUMI_BACKEND_URL": url}
    workspace = SimpleNamespace(pulumi_command=None, work_dir=".", env_vars=variables)
    return Recovery("dev", cast(automation.Workspace, workspace), lambda line: None)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("loses", ["", "POST"])
def test_an_engine_is_noted_and_the_note_goes_though_its_answer_is_lost(
    cloud: LocalCloud, url: str, loses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lossy, "loses", loses)
    process = subprocess.Popen(["sleep", "600"], text=True)
    note = Note(process, ("up",), {"PULUMI_BACKEND_URL": url})
    note.write()
    (held,) = noted_engines(opened(url))
    assert held.holder.process == process.pid
    process.terminate()
    process.wait()
    note.remove()
    assert len(names(cloud)) == 1
    process.returncode = 0
    note.remove()
    assert names(cloud) == []


@pytest.mark.parametrize("url", URLS)
def test_exactly_the_lock_that_was_named_is_deleted(cloud: LocalCloud, url: str) -> None:
    there = opened(url)
    for lock in ("1", "2"):
        there.write(f"{LOCKS}/{lock}.json", "{}")
    (named,) = locks_in(REFUSED.format(url, LOCKS, "1"))
    recovery(url).release([named])
    assert [name.rpartition("/")[2] for name in names(cloud)] == ["2.json"]


def test_a_release_with_a_lost_answer_fails_and_can_be_repeated(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(URLS[0]).write(f"{LOCKS}/1.json", "{}")
    named = locks_in(REFUSED.format(URLS[0], LOCKS, "1"))
    monkeypatch.setattr(Lossy, "loses", "DELETE")
    with pytest.raises(TpustackError, match="the answer is lost"):
        recovery(URLS[0]).release(named)
    monkeypatch.setattr(Lossy, "loses", "")
    recovery(URLS[0]).release(named)
    assert names(cloud) == []


def test_a_bucket_that_refuses_proves_no_holder_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lossy, "loses", "GET")
    (named,) = locks_in(REFUSED.format(URLS[0], LOCKS, "1"))
    assert not recovery(URLS[0]).are_orphaned([named])
