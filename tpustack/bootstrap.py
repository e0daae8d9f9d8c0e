"""Creates what the pipeline needs, including its state bucket, and keeps its own state there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from bootstrap.settings import BootstrapError, BootstrapSettings, parse, rights_of
from tpustack.cloud.access import require_project
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Update
from tpustack.engine.toolchain import PASSPHRASE
from tpustack.errors import TpustackError, UsageError
from tpustack.project import BACKEND, root, state
from tpustack.recovery.locks import LockedError
from tpustack.recovery.repair import Repair

_PASSPHRASE_VARIABLE = "PULUMI_CONFIG_PASSPHRASE"


def load(stack: str, project: Path) -> BootstrapSettings:
    """Return the settings of a bootstrap stack. Raises UsageError with every problem."""
    path = project / "bootstrap" / f"Pulumi.{stack}.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return parse(document.get("config") or {}, stack)
    except FileNotFoundError:
        there = sorted(each.stem.partition(".")[2] for each in path.parent.glob("Pulumi.*.yaml"))
        raise UsageError(
            f"bootstrap/ has no {path.name}. There are: {', '.join(there) or 'none'}"
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    except BootstrapError as error:
        raise UsageError(str(error)) from None


def bootstrap(stack: str, environment: Mapping[str, str], line: Callable[[str], None]) -> Update:
    """Create or update everything; the next run continues one that was interrupted.

    The state of the first run lies in a folder, until there is a bucket to move it to.
    """
    settings = load(stack, root())
    try:
        rights_of(settings, root())
    except BootstrapError as error:
        raise UsageError(str(error)) from None
    for project in dict.fromkeys((settings.project, *settings.all_projects)):
        require_project(project)
    program, folder = root() / "bootstrap", state() / "bootstrap"
    known = {_PASSPHRASE_VARIABLE: os.environ.get(_PASSPHRASE_VARIABLE, PASSPHRASE), **environment}
    there = Backend({**known, BACKEND: f"gs://{settings.bucket}"}, program)
    unfinished = folder.exists()
    if not unfinished and _has(there, stack):
        return there.select(stack).up(line)
    folder.mkdir(parents=True, exist_ok=True)
    here = there.elsewhere(folder).select(stack)
    if unfinished:
        recovery = here.recovery(line)
        repair = Repair(recovery)
        try:
            repair.take_up()
            repair.when_unlocked(recovery.ask_for_lock)
        except LockedError as error:
            raise TpustackError(
                f"another `tpustack bootstrap` may be at work: {error}. Nothing was changed. If "
                f"it is dead, delete {', '.join(each.url for each in error.locks)}"
            ) from None
    update = here.up(line)
    if stack not in there.stacks():
        there.create(stack)
    here.copy_to(there.stack(stack))
    shutil.rmtree(folder)
    return update


def _has(backend: Backend, stack: str) -> bool:
    try:
        return stack in backend.stacks()
    except TpustackError:
        # There is no such bucket yet. `up` reports anything else that is wrong.
        return False
