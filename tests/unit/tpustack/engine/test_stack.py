"""What the engine is asked for: each further command takes half a second of everybody's time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pulumi import automation
from semver import VersionInfo

from tpustack.engine.stack import Stack

SUMMARY = {"resourceChanges": {"create": 2, "same": 5}, "durationSeconds": 1, "PolicyPacks": {}}
SAID = {
    "stack export": json.dumps({"version": 3, "deployment": {}}),
    "stack output": json.dumps({"bucket_url": "gs://b", "token": "a secret"}),
}


class Engine(automation.PulumiCommand):
    """Notes the commands, and tells a summary to who listens for events."""

    def __init__(self) -> None:
        # Such an old one writes its events into a file.
        self.command, self.version = "pulumi", VersionInfo(3, 100, 0)
        self.asked: list[str] = []

    def run(self, args: list[str], *_: Any, **__: Any) -> automation.CommandResult:
        words = [word for word in args if not word.startswith("-")]
        name = " ".join(words[: 2 if words[0] == "stack" else 1])
        self.asked.append(name)
        if "--event-log" in args:
            log = Path(args[args.index("--event-log") + 1])
            event = {"sequence": 0, "timestamp": 0, "summaryEvent": SUMMARY}
            end = {"sequence": 1, "timestamp": 0, "cancelEvent": {}}
            log.write_text(f"{json.dumps(event)}\n{json.dumps(end)}\n", encoding="utf-8")
        return automation.CommandResult(SAID.get(name, ""), "", 0)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def stack(engine: Engine, tmp_path: Path) -> Stack:
    made = Stack("dev", automation.LocalWorkspace(work_dir=str(tmp_path), pulumi_command=engine))
    engine.asked.clear()
    return made


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def test_an_update_reads_the_state_before_it_and_neither_outputs_nor_history_after_it(
    stack: Stack, engine: Engine
) -> None:
    update = stack.up(ignore)
    assert engine.asked == ["stack export", "up"]
    assert (update.changes, update.changed) == ({"create": 2, "same": 5}, 2)
    assert stack.outputs() == {"bucket_url": "gs://b", "token": "a secret"}


def test_other_operations_read_nothing_after_they_end(stack: Stack, engine: Engine) -> None:
    assert stack.refresh(ignore) == {"create": 2, "same": 5}
    stack.destroy(ignore)
    stack.renew([], ignore)
    stack.deploy(Path("plan.json"), ignore)
    operations = [name for name in engine.asked if name != "stack export"]
    assert operations == ["refresh", "destroy", "up", "up"]
