"""The folder that a chaos run works in: a project, a stack, data and a wheel of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from infra.settings.stack_file import stack_path
from tpustack import project
from tpustack.errors import TpustackError
from tpustack.stacks import wheel

STACK = "local"
"""As the stack is called, so are its machines: tpu-stack-local-vm-0 and tpu-stack-local-tpu."""
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


def make(folder: Path, steps: int) -> Path:
    """Make the project in an empty folder and return where it is."""
    root, made = project.root(), folder / "project"
    (made / "stacks").mkdir(parents=True)
    for name in ("infra", "policy"):
        (made / name).symlink_to(root / name)
    definition = yaml.safe_load((root / "Pulumi.yaml").read_text(encoding="utf-8"))
    definition["runtime"]["options"]["virtualenv"] = sys.prefix
    (made / "Pulumi.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    _convert(made / "data")
    path = stack_path(root, STACK)
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings["config"] |= _changes(made, steps, wheel.build(folder / "dist"))
    (made / "stacks" / path.name).write_text(yaml.safe_dump(settings), encoding="utf-8")
    return made


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
        "tpu-stack:vm": {"machineType": "n1-standard-2", "managed": {}},
    }


def _convert(target: Path) -> None:
    command = [sys.executable, "-m", "tpu_training", "data", "convert"]
    command += ["--source=digits", f"--output={target}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TpustackError((done.stderr or done.stdout).strip())
