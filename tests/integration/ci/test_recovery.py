"""A state that is damaged, and a lock that is lost, as docs/ci-cd.md says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.integration.ci.conftest import Checkout, MakeCheckout

NO_CHANGE, FAILURE, CHANGES = 0, 1, 3


def test_a_damaged_state_is_put_back_a_lost_lock_released_and_an_orphan_swept(
    checkout: MakeCheckout, tmp_path: Path
) -> None:
    clone = checkout("dev", small=True)
    assert clone.ci("deploy", "--stack", "dev").code == CHANGES
    assert clone.git("status", "--porcelain") == ""
    state = tmp_path / "state" / ".pulumi"
    current = state / "stacks/tpu-stack/dev.json"
    current.write_text(current.read_text(encoding="utf-8")[:500], encoding="utf-8")
    damaged = clone.ci("deploy", "--stack", "dev")
    assert damaged.code == FAILURE, damaged.said
    assert "Traceback" not in damaged.said
    (checkpoint,) = (state / "history/tpu-stack/dev").glob("*.checkpoint.json")
    shutil.copy(checkpoint, current)
    put_back = clone.ci("deploy", "--refresh", "--stack", "dev")
    assert put_back.code == NO_CHANGE, put_back.said

    locks = state / "locks/organization/tpu-stack/dev"
    locks.mkdir(parents=True, exist_ok=True)
    # No one can tell from here whether that machine's process lives.
    lock = {"pid": 1, "username": "ada", "hostname": "lost", "timestamp": "2999-01-01T00:00:00Z"}
    (locks / "1.json").write_text(json.dumps(lock), encoding="utf-8")
    clone.settings("dev", labels={"team": "vision"})
    recover = (str(clone.python), "-m", "tpustack", "recover", "--stack")
    refused = subprocess.run(
        (*recover, "dev"), cwd=clone.path, env=clone.variables, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "locked by ada@lost (process 1) since 2999-01-01 00:00:00 UTC" in refused.stderr
    typo = subprocess.run(
        (*recover, "typo"), cwd=clone.path, env=clone.variables, capture_output=True, text=True
    )
    assert (typo.returncode, "no such stack" in typo.stderr) == (2, True)
    assert not (clone.path / "stacks/Pulumi.typo.yaml").exists()
    run(clone, *recover, "dev", "--yes")
    deployed = clone.ci("deploy", "--stack", "dev")
    assert deployed.code == CHANGES, deployed.said

    # What a run left that failed before it noted anything.
    run(clone, "pulumi", "stack", "init", "pr-8")
    swept = clone.ci("sweep")
    assert swept.code == CHANGES, swept.said
    assert "failed before it was done" in clone.text("pr-8")


def run(clone: Checkout, *command: str) -> None:
    subprocess.run(command, cwd=clone.path, env=clone.variables, check=True, capture_output=True)
