"""What the pipeline refuses: in words, with an exit code, and with nothing half done."""

from __future__ import annotations

import json
import os
import shutil
import socket
from datetime import datetime, timezone
from pathlib import Path

from tests.integration.ci.conftest import OUTPUT, MakeCheckout
from tpustack.local import LocalCloudCommand

NO_CHANGE, FAILURE, CHANGES = 0, 1, 3
LOCKS = ".pulumi/locks/organization/tpu-stack/dev"


def test_whatever_is_wrong_is_said_and_nothing_is_changed(
    checkout: MakeCheckout, cloud: LocalCloudCommand, tmp_path: Path
) -> None:
    clone = checkout("dev", "test", "staging", "prod", small=True)
    before = cloud.status()["resources"]
    (clone.path / "stacks/Pulumi.broken.yaml").write_text("config: [", encoding="utf-8")
    wrong = clone.ci("preview", "--stack", "broken", "--stack", "nosuch")
    assert wrong.code == FAILURE
    assert "has a file that is not valid YAML" in clone.text("broken")
    assert "has no file Pulumi.nosuch.yaml" in clone.text("nosuch")

    secret = clone.ci("deploy", "--stack", "dev", PULUMI_CONFIG_PASSPHRASE="")
    assert secret.code == FAILURE
    assert "PULUMI_CONFIG_PASSPHRASE: (not set)" in clone.text("dev")

    # This touches all four stacks.
    (clone.path / "infra/touched.py").touch()
    previewed = clone.ci("preview", "--base", "origin/main")
    assert previewed.code == CHANGES, previewed.said
    assert len(clone.result()["stacks"]) == 4
    shutil.copytree(clone.path / OUTPUT, clone.path / "plans")
    clone.settings("dev", labels={"team": "unseen"})
    refused = clone.ci("deploy", "--plans", "plans")
    assert refused.code == FAILURE
    assert "labels.team" in clone.text("dev")
    assert "because stack dev failed" in clone.text("test")
    assert "because stack dev failed" in clone.text("prod")

    locks = tmp_path / "state" / LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    lock = {
        "pid": os.getpid(),
        "username": "ada",
        "hostname": socket.gethostname(),
        "timestamp": datetime.now(timezone.utc).isoformat(),
    }
    (locks / "1.json").write_text(json.dumps(lock), encoding="utf-8")
    held = clone.ci("deploy", "--stack", "dev")
    assert held.code == FAILURE
    assert f"stack dev is locked by ada@{lock['hostname']}" in clone.text("dev")
    assert cloud.status()["resources"] == before

    # Not even that there is no such process proves that its holder is dead.
    (locks / "1.json").write_text(json.dumps({**lock, "pid": 2**22 + 1}), encoding="utf-8")
    assert clone.ci("deploy", "--stack", "dev").code == FAILURE
    assert "which is not known to be dead" in clone.text("dev")
    (locks / "1.json").unlink()
    taken = clone.ci("deploy", "--stack", "dev")
    assert taken.code == CHANGES, taken.said
