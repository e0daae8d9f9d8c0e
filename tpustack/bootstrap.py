"""`tpustack bootstrap`: creates what the pipeline needs, including its own state's bucket.

The bucket that is to hold the state does not exist before the first run, so that run keeps its
state in a folder, which stays until the state is in the bucket: a run that is interrupted at any
point finds either the folder or the bucket.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from tpu_bootstrap.settings import BootstrapError, BootstrapSettings, parse, rights_of
from tpu_core.words import plural
from tpustack.cloud.google import require_project
from tpustack.console import say
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Update
from tpustack.errors import TpustackError, UsageError
from tpustack.project import BACKEND, read_yaml, root, state
from tpustack.recovery.locks import LockedError

_PASSPHRASE_VARIABLE = "PULUMI_CONFIG_PASSPHRASE"


def load(stack: str, project: Path) -> BootstrapSettings:
    """Return the settings of a bootstrap stack. Raises UsageError with every problem."""
    path = project / "bootstrap" / f"Pulumi.{stack}.yaml"
    if not path.parent.is_dir():
        raise UsageError(
            f"{project} has no bootstrap/ with the pipeline's settings. Copy that folder from a "
            "new project of `tpustack new`"
        )
    if not path.exists():
        names = sorted(each.stem.partition(".")[2] for each in path.parent.glob("Pulumi.*.yaml"))
        raise UsageError(f"bootstrap/ has no {path.name}. Available: {', '.join(names) or 'none'}")
    document = read_yaml(path)
    config = document.get("config") if isinstance(document, dict) else document
    if not (isinstance(config or {}, dict) and all(isinstance(key, str) for key in config or {})):
        raise UsageError(
            f"bootstrap/{path.name}: its settings are not a map. Put them below `config:`, each "
            "as `tpu-stack-bootstrap:NAME: VALUE`"
        )
    try:
        return parse(config or {}, stack)
    except BootstrapError as error:
        raise UsageError(str(error)) from None


def checked(stack: str) -> BootstrapSettings:
    """Return the settings of a bootstrap stack whose projects can be reached. Raises UsageError."""
    settings = load(stack, root())
    try:
        rights_of(settings, root())
    except BootstrapError as error:
        raise UsageError(str(error)) from None
    for project in dict.fromkeys((settings.project, *settings.all_projects)):
        require_project(project)
    return settings


def bootstrap(
    stack: str,
    settings: BootstrapSettings,
    environment: Mapping[str, str],
    line: Callable[[str], None],
) -> tuple[Update, dict[str, Any]]:
    """Create or update everything; return what that did, and the outputs.

    The next run continues one that was interrupted.

    Raises TpustackError while another run may be at work on the folder.
    """
    program, folder = root() / "bootstrap", state() / "bootstrap"
    known = {
        _PASSPHRASE_VARIABLE: os.environ.get(_PASSPHRASE_VARIABLE, toolchain.PASSPHRASE),
        **environment,
    }
    remote = Backend({**known, BACKEND: f"gs://{settings.bucket}"}, program)
    unfinished = folder.exists()
    # A folder that is there comes first: it is the state of a run that did not finish, and the only
    # one that knows what that run made.
    if not unfinished and _has(remote, stack):
        there = remote.select(stack)
        return there.up(line), there.outputs()
    folder.mkdir(parents=True, exist_ok=True)
    local = remote.elsewhere(folder).select(stack)
    if unfinished:
        recovery = local.recovery(line)
        try:
            recovery.take_up()
            recovery.when_unlocked(recovery.ask_for_lock)
        except LockedError as error:
            raise TpustackError(
                f"another `tpustack bootstrap` may be running: {error}. Nothing was changed. If "
                f"it's dead, delete {', '.join(each.url for each in error.locks)}"
            ) from None
    done = local.up(line), local.outputs()
    # From here on the folder is deleted only after the state is in the bucket as a whole.
    if stack not in remote.stacks():
        remote.create(stack)
    local.copy_to(remote.stack(stack))
    shutil.rmtree(folder)
    return done


def _has(backend: Backend, stack: str) -> bool:
    try:
        return stack in backend.stacks()
    except TpustackError:
        # There is no such bucket yet. `up` reports anything else that is wrong.
        return False


@click.command("bootstrap")
@click.option(
    "--stack",
    "-s",
    default="pipeline",
    show_default=True,
    help="Its settings are bootstrap/Pulumi.STACK.yaml.",
)
@toolchain.needed()
def command(stack: str) -> None:
    """Create the state bucket, the key and the identities of the pipeline.

    May be run again at any time; prints the values to enter in the pipeline's settings.
    """
    settings = checked(stack)
    environment = toolchain.engine(toolchain.find())
    update, outputs = bootstrap(stack, settings, environment, say)
    click.echo(plural(update.changed, "change") if update.changed else "nothing changed")
    for name, value in sorted(outputs.items()):
        click.echo(f"{name}: {value}")
