"""Stacks on the page: what they cost, and their drift on request."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.unit.tpustack.dashboard.conftest import PORT, TOKEN, a_stack, engine
from tpu_infra.catalog import Catalog
from tpustack.cloud.google import Google
from tpustack.dashboard.server import Application, Guard
from tpustack.dashboard.sources import Place, stack
from tpustack.engine.stack import Change
from tpustack.errors import TpustackError

CHANGE = Change("update", "gcp:storage/bucket:Bucket", "bucket", ("labels.team",))
DRIFT = "/api/places/dev/drift"


@pytest.fixture
def page(google: Google) -> TestClient:
    app = Guard(Application([a_stack("dev")], google).asgi, PORT, TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers=headers)


def test_compare_shows_changes_made_by_hand(
    page: TestClient, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    engine(monkeypatch, project, CHANGE)
    said = page.post(DRIFT).json()
    assert (said["outcome"], said["stack"]) == ("drift", "dev")
    assert said["changes"][0]["properties"] == ["labels.team"]
    engine(monkeypatch, project)
    assert page.post(DRIFT).json()["outcome"] == "no change"


def test_without_an_engine_compare_says_why(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise TpustackError("there is no engine here")

    monkeypatch.setattr("tpustack.engine.backend.users_own", none)
    answer = page.post(DRIFT)
    assert (answer.status_code, answer.json()) == (502, {"problem": "there is no engine here"})


def test_a_stack_has_its_price_an_hour_and_a_bucket_has_none() -> None:
    known = stack(a_stack("dev"), Catalog())
    assert float(known["hour"]) > 1
    assert (known["isStack"], known["tpu"], known["zone"]) == (True, "v2-8", "us-central1-b")
    assert stack(Place("b", "b"), Catalog())["isStack"] is False
