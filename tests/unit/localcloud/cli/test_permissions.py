"""What calls asked of IAM is noted, so that a role can be made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud import cli
from localcloud.app import LocalCloud
from localcloud.testing import Client

PROJECT = "projects/tpu-stack-local"
VIEWER = "user:viewer@example.com"
Ask = Callable[..., str]


@pytest.fixture
def ask(
    local_cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ask:
    """Runs `permissions` against the test's own cloud; its output."""
    home = local_cloud.cloud.home
    run = {"pid": 1, "port": local_cloud.listener.port}
    monkeypatch.setattr("localcloud.lifecycle.running", lambda _: run)

    def command(*arguments: str) -> str:
        assert cli.main(["permissions", *arguments, "--home", str(Path(home))]) == 0
        return capsys.readouterr().out

    return command


def test_permissions_lists_granted_and_refused_ones(api: Client, ask: Ask) -> None:
    viewer = api.as_member(VIEWER)
    api.get(f"cloudresourcemanager.googleapis.com/v1/{PROJECT}")
    viewer.get(f"serviceusage.googleapis.com/v1/{PROJECT}/services", status=403)
    wanted = {"permissions": ["tpu.nodes.create"]}
    viewer.post(f"cloudresourcemanager.googleapis.com/v1/{PROJECT}:testIamPermissions", wanted)
    assert ask(VIEWER) == f"{VIEWER}\n  serviceusage.services.list  (refused)\n"
    assert '"resourcemanager.projects.get": true' in ask("--json", "--clear")
    assert ask() == ""
