"""The folder that a chaos run works in: a project, a stack, data and a wheel of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra.catalog import Catalog
from infra.checks import find_problems
from infra.checks.context import Context
from infra.names import names_of
from infra.settings.base import SettingsError
from infra.settings.parse import NAMESPACE, parse, stack_path
from tpustack import project
from tpustack.errors import TpustackError, UsageError
from tpustack.stacks import wheel

STACK = "local"
"""As the stack is called, so are its machines: tpu-stack-local-vm-0 and tpu-stack-local-tpu."""
WANTED = "x-stack"
"""Under this key a scenario names settings that its stack needs."""
_OWN = ("training", "recovery", "vm")
BATCH = 32
_INTERVAL = 10


def arguments(steps: int, made: Path) -> list[str]:
    """Return the trainer's own arguments: small steps, and a checkpoint after every tenth."""
    manifest = json.loads((made / "data" / "manifest.json").read_text(encoding="utf-8"))
    examples = manifest["splits"]["train"]["examples"]
    # Half a step more: the trainer drops what is no whole one.
    epochs = (steps + 0.5) * BATCH / examples
    return [
        f"--epochs={epochs:.6f}",
        f"--global_batch_size={BATCH}",
        f"--steps_per_loop={_INTERVAL}",
        f"--checkpoint_interval={_INTERVAL}",
        "--snapshot_interval=0",
        "--learning_rate=0.001",
    ]


def wanted(scenario: Path) -> dict[str, object]:
    """Return the settings that a scenario's stack needs, by their keys in a stack file.

    Raises:
        UsageError: naming all that is wrong with them.
    """
    named = yaml.safe_load(scenario.read_text(encoding="utf-8")).get(WANTED, {})
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named):
        raise UsageError(f"{scenario}: {WANTED}: expected settings by their names, not {named!r}")
    if own := [name for name in _OWN if name in named]:
        raise UsageError(
            f"{scenario}: {WANTED}: {', '.join(own)}: set by the run itself; remove it"
        )
    found = {f"{NAMESPACE}:{name}": value for name, value in named.items()}
    try:
        settings = parse(_stack_file()["config"] | found, STACK)
    except SettingsError as error:
        problems = [*error.problems]
    else:
        context = Context(STACK, project.root(), Catalog(), names_of(settings, STACK))
        problems = [*find_problems(settings, context)]
    # The data of the stack is only made later.
    wrong = [f"- {each}" for each in problems if each.setting.partition(".")[0] in named]
    if wrong:
        raise UsageError("\n".join([f"{scenario}: {WANTED}:", *wrong]))
    return found


def make(folder: Path, steps: int, settings: Mapping[str, object]) -> Path:
    """Make the project in an empty folder and return where it is; `settings` are its stack's."""
    root, made = project.root(), folder / "project"
    (made / "stacks").mkdir(parents=True)
    for name in ("infra", "policy"):
        (made / name).symlink_to(root / name)
    definition = yaml.safe_load((root / "Pulumi.yaml").read_text(encoding="utf-8"))
    definition["runtime"]["options"]["virtualenv"] = sys.prefix
    (made / "Pulumi.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    _convert(made / "data")
    stack = _stack_file()
    stack["config"] |= {**_changes(made, steps, wheel.build(folder / "dist")), **settings}
    stack_path(made, STACK).write_text(yaml.safe_dump(stack), encoding="utf-8")
    return made


def _stack_file() -> dict[str, Any]:
    path = stack_path(project.root(), STACK)
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def clear(folder: Path) -> None:
    """Delete what an earlier run has left."""
    shutil.rmtree(folder, ignore_errors=True)


def _changes(made: Path, steps: int, built: Path) -> dict[str, object]:
    """Return the settings that differ from the stack of `make demo`."""
    training = {
        "data": str(made / "data"),
        "wheel": str(built),
        "tensorflowVersion": "2.19.1",
        "args": arguments(steps, made),
    }
    limitless = {"enabled": True, "preemptionsPerDay": 1000, "failuresPerDay": 1000}
    return {
        "tpu-stack:training": training,
        "tpu-stack:recovery": limitless,
        "tpu-stack:vm": {"machineType": "n1-standard-2", "instanceGroup": {}},
    }


def _convert(target: Path) -> None:
    command = [sys.executable, "-m", "tpu_training", "data", "convert"]
    command += ["--source=digits", f"--output={target}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TpustackError((done.stderr or done.stdout).strip())
