"""TPUs that Google has taken away, in a project that is really there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pulumi
import pytest
import requests

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import Principal
from localcloud.core.cloud import DEVELOPER
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.tpu.api import NODE
from tpu_infra import advice
from tpu_infra.credentials import client_of
from tpu_infra.names import names_of
from tpu_infra.resources.request import TpuApi, standing
from tpu_infra.rest import ApiError
from tpu_infra.settings.parse import parse

from .conftest import Run, config

POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
CREATED = "2026-11-22T06:00:00Z"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    """A cloud with TPUs, and this process with a developer's token of it and nothing else."""
    cloud = LocalCloud(tmp_path / "cloud")
    cloud.start()
    projects.enable_services(cloud.cloud, DEFAULT_PROJECT, ["tpu.googleapis.com"])
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{cloud.listener.port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cloud.authority.bundle))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.cloud.token(Principal(DEVELOPER)))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield cloud
    cloud.stop()


def found(**tpu: object) -> dict[str, str]:
    """What a program with these settings finds."""
    settings = parse({**config(tpu={**POD, **tpu}), "gcp:project": DEFAULT_PROJECT}, "test")
    names = names_of(settings, "test").tpus(settings.tpu.slices)
    return dict(advice.look_for_preempted(settings, names)())


def serve(cloud: LocalCloud, states: dict[str, str]) -> None:
    """Let TPUs stand in these states."""
    for name, state in states.items():
        path = f"projects/{DEFAULT_PROJECT}/locations/us-central1-b/nodes/{name}"
        record = {"name": path, "state": state, "createTime": CREATED, "apiVersion": "V2"}
        cloud.cloud.store.put(NODE, path, record)


def test_a_tpu_that_google_has_taken_is_found_among_the_slices(cloud: LocalCloud) -> None:
    names = [f"tpu-stack-test-tpu-{number}" for number in range(4)]
    serve(cloud, dict(zip(names, ("READY", "PREEMPTED", "TERMINATED"), strict=False)))
    assert found(slices=4) == {
        names[1]: f"Replaces the TPU of {CREATED}, which is PREEMPTED",
        names[2]: f"Replaces the TPU of {CREATED}, which is TERMINATED",
    }


@pytest.mark.parametrize(("slices", "pages"), [(1, 1), (64, 1), (256, 3)])
def test_one_list_looks_for_all_slices(
    cloud: LocalCloud, slices: int, pages: int, caplog: pytest.LogCaptureFixture
) -> None:
    names = names_of(parse(config(tpu=POD), "test"), "test").tpus(slices)
    serve(cloud, dict.fromkeys(names, "PREEMPTED"))
    caplog.set_level("INFO", "localcloud.requests")
    assert len(found(slices=slices)) == slices
    assert len([one for one in caplog.messages if " tpu.projects." in one]) == pages


def test_queued_tpus_are_not_looked_up_nor_any_without_credentials(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(cloud, {"tpu-stack-test-tpu": "PREEMPTED"})
    assert found(queued={}) == {}
    assert found() != {}
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    assert found() == {}


def test_without_permission_no_tpu_counts_as_preempted(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(cloud, {"tpu-stack-test-tpu": "PREEMPTED"})
    stranger = cloud.cloud.token(Principal("user:stranger@example.com"))
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", stranger)
    assert found() == {}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("V2Vm", {"tpu": POD}),
        (
            "Node",
            {
                "architecture": "node",
                "tpu": {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"},
            },
        ),
    ],
)
def test_the_tpu_that_is_made_in_its_place_is_described_so_and_the_preview_says_it(
    run: Run, kind: str, settings: dict[str, object]
) -> None:
    engine, _ = run(config(**settings), taken={"tpu-stack-test-tpu": "In place of another"})
    assert engine.one(kind)["description"] == "In place of another"
    assert any("preempted tpu-stack-test-tpu" in note for note in engine.notes)
    engine, _ = run(config(**settings))
    assert "description" not in engine.one(kind)


def test_a_list_that_leaves_out_what_google_does_not_reach_is_no_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = TpuApi(client_of(requests.Session()))
    monkeypatch.setattr(api, "call", lambda *_: {"nodes": [], "unreachable": ["us-central1-b"]})
    with pytest.raises(ApiError, match="can't reach us-central1-b"):
        standing(api, {"project": "p", "zone": "us-central1-b", "nodes": ["a", "b"]})


def test_the_program_does_not_wait_for_an_unreachable_google(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    class Offline(requests.Session):
        def request(self, *arguments: object, **options: object) -> NoReturn:
            asked.append(arguments)
            raise requests.ConnectionError("no address")

    monkeypatch.setattr(advice, "users_client", lambda: client_of(Offline()))
    assert found(slices=256) == {}
    assert len(asked) == 1


def test_google_that_refuses_once_and_then_is_unreachable_is_an_error() -> None:
    busy = requests.Response()
    busy.status_code = 503

    class Failing(requests.Session):
        answers = iter([busy])

        def request(self, *arguments: object, **options: object) -> requests.Response:
            for answer in self.answers:
                return answer
            raise requests.ConnectionError("no address")

    api = TpuApi(client_of(Failing()), sleep=lambda _: None, connects=1)
    with pytest.raises(ApiError, match="can't be reached: no address"):
        api.get("nodes")


def test_a_preview_does_not_wait_long_for_one_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()

    class Silent(requests.Session):
        def request(self, *arguments: object, **options: object) -> NoReturn:
            answers.wait(60)
            raise requests.ConnectTimeout("too late")

    monkeypatch.setattr(advice, "users_client", lambda: client_of(Silent()))
    monkeypatch.setattr(advice, "LONGEST", 0.05)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    assert found() == {}
    told: list[object] = []

    async def program() -> None:
        advice.look_up(lambda: answers.wait(60), told.append)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    asyncio.run(program())
    assert told == []
    answers.set()
