"""A bucket that stays, deployed as an account with exactly what its stack is said to take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from localcloud.testing import Session
from tpu_infra.deployer import CHANGE, READ, WRITE, objects_condition, permissions_of
from tpustack.engine.stack import Stack

from .test_recovery import FORMS, NODES
from .test_stacks import Become, settings_of

NAME = "tpu-stack-local-kept"
OBJECTS = f"https://storage.googleapis.com/storage/v1/b/{NAME}/o"
KEPT = {"name": NAME, "forceDestroy": False}
DELETE = "storage.objects.delete"


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def objects(google: requests.Session) -> dict[str, str]:
    """What is in the bucket, as its owner sees it, by the digests."""
    items = google.get(OBJECTS).json().get("items", [])
    return {item["name"]: item["md5Hash"] for item in items}


@pytest.mark.parametrize("form", ["plain", "queued"])
def test_data_and_declaration_change_and_the_stack_goes_and_comes_back_to_its_bucket(
    deploy: Callable[..., Stack],
    deployer: Become,
    google: requests.Session,
    project: Path,
    trainer: Path,
    form: str,
) -> None:
    data = project / "data"
    data.mkdir()
    (data / "manifest.json").write_text("{}", encoding="utf-8")
    training = {"wheel": str(trainer), "tensorflowVersion": "2.19.1", "data": str(data)}
    recovery = {"enabled": True}
    settings: dict[str, Any] = {
        "bucket": KEPT,
        "training": training,
        "recovery": recovery,
        **FORMS[form],
    }
    parsed = settings_of("local", settings)
    permissions = permissions_of(parsed)
    account = deployer(permissions, objects_condition(parsed, "local"))
    engine = deploy(**settings)
    engine.up(ignore)
    first = objects(google)
    google.post(
        f"https://storage.googleapis.com/upload/storage/v1/b/{NAME}/o",
        params={"uploadType": "media", "name": "jobs/train/checkpoint"},
        data=b"weights",
    ).raise_for_status()

    (data / "manifest.json").write_text('{"more": 1}', encoding="utf-8")
    deploy(**settings, labels={"team": "vision"})
    engine.up(ignore)
    second = objects(google)
    for name in ("data/manifest.json", "agent/declaration.json"):
        assert first[name] != second[name]
    engine.destroy(ignore)
    assert google.get(NODES).json().get("nodes", []) == []
    left = objects(google)
    assert left.keys() >= first.keys() - {"agent/declaration.json"}
    assert "agent/declaration.json" not in left
    own = deploy(**settings | {"bucket": {"name": NAME, "create": False}})
    own.up(ignore)
    own.destroy(ignore)
    # The second stack's agent remembers its own TPU.
    left.pop("agent/state.json", None)
    assert objects(google).items() >= left.items()
    assert "agent/declaration.json" not in objects(google)
    needed = {*permissions.of_project(READ, WRITE), DELETE}
    assert needed <= {*account.asked()} <= {*needed, *permissions.of_project(CHANGE)}

    client = Session()
    client.proxies, client.verify, client.trust_env = google.proxies, google.verify, False
    mine = account.session(client)
    assert mine.delete(f"{OBJECTS}/jobs%2Ftrain%2Fcheckpoint").status_code == 403
