"""The stacks of a project in the backend that holds their state, and the `pulumi` process."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import click
from pulumi import automation
from pulumi.automation.errors import create_command_error

from tpustack.console import Interrupted, hurry
from tpustack.engine import named, toolchain
from tpustack.engine.stack import Stack, explained, reason
from tpustack.errors import TpustackError, UsageError
from tpustack.project import BACKEND, root
from tpustack.recovery import locks as locking


class _Workspace(automation.LocalWorkspace):
    """Without a side effect of the API's own: what it does with a stack selects it for the user."""

    def select_stack(self, stack_name: str) -> None:
        """Leave the user's selection alone: every command names its stack."""

    def choose(self, stack: str) -> None:
        """Select a stack, as `pulumi stack select` does."""
        super().select_stack(stack)


class Backend:
    """`pulumi` on a project.

    Args:
        environment: what the engine gets besides this process' own variables.
        policies: the policy pack; None: the one of `root`.
    """

    def __init__(
        self, environment: Mapping[str, str], root: Path, policies: Path | None = None
    ) -> None:
        self.root, self._policies = root, policies
        self.environment = dict(environment)
        # The Automation API looks the `pulumi` binary up on this process' own PATH.
        os.environ["PATH"] = self.environment.get("PATH", os.environ["PATH"])
        toolchain.end_orphans()
        self._workspace = _Workspace(
            work_dir=str(root), env_vars=self.environment, pulumi_command=Pulumi()
        )

    def elsewhere(self, folder: Path) -> "Backend":
        """Return the same project with an empty state in `folder`."""
        environment = {**self.environment, BACKEND: f"file://{folder}"}
        return Backend(environment, self.root, self._policies)

    def stack(self, name: str) -> Stack:
        """Return a stack that is there; the user's selection stays."""
        return Stack(name, self._workspace, self._policies)

    def select(self, name: str) -> Stack:
        """Select a stack and return it; make it if the backend has none of this name."""
        with explained("select", name):
            try:
                self._workspace.choose(name)
            except automation.StackNotFoundError:
                self._workspace.create_stack(name)
        return self.stack(name)

    def selected(self) -> str | None:
        """Return the stack that `pulumi stack select` chose; None without one."""
        with _failing(
            "Pulumi can't tell which stack is selected. Name one with --stack. It said: "
        ):
            selected = self._workspace.stack()
        return selected.name if selected else None

    def stacks(self) -> dict[str, datetime | None]:
        """Return the stacks that the backend has, and when each was last updated (UTC)."""
        locking.mend_folder(self.environment.get(BACKEND) or os.environ.get(BACKEND, ""))
        with _failing("the backend can't be read: "):
            found = self._workspace.list_stacks()
        # The API drops the Z of Pulumi's time, and a time without a zone compares with no other.
        return {
            each.name: each.last_update and each.last_update.replace(tzinfo=timezone.utc)
            for each in found
        }

    def create(self, stack: str) -> None:
        """Make an empty stack."""
        with _failing(""):
            self._workspace.create_stack(stack)

    def remove(self, stack: str) -> None:
        """Take an empty stack out of the backend; its settings file is left alone."""
        with _failing(""):
            self._workspace.remove_stack(stack, preserve_config=True)

    def tags(self, stack: str) -> dict[str, str]:
        """Return what was noted about a stack."""
        with _failing(""):
            return dict(self._workspace.list_tags(stack))

    def tag(self, stack: str, **tags: str) -> None:
        """Note something about a stack."""
        with _failing(""):
            for key, value in tags.items():
                self._workspace.set_tag(stack, key, value)


def users_own() -> Backend:
    """Return the project in the backend that the user logged in to; find or build the engine."""
    tools = toolchain.find()
    return Backend({"PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}"}, root())


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except automation.CommandError as error:
        raise TpustackError(f"{what}{reason(str(error))}") from None


# The `pulumi` process: nothing of it is left when this process is interrupted.

_POLL = 0.1
# After a signal that is not Ctrl-C a pipeline kills within ten seconds or so.
_IMPATIENT = 5.0
# Seconds for what is still in the pipes: a process that outlives the engine may hold them open.
_LAST_WORDS = 1.0
_Output = Callable[[str], object] | None


class Pulumi(automation.PulumiCommand):
    """The Automation API's own command, except for what happens at an interruption.

    The API's stops to read when Python's Ctrl-C comes, with a traceback, and leaves the language
    host, the program and the provider alone.
    """

    def run(
        self,
        args: list[str],
        cwd: str,
        additional_env: Mapping[str, str],
        on_output: _Output = None,
        on_error: _Output = None,
    ) -> automation.CommandResult:
        """Run a command and return its result.

        Raises:
            CommandError: when it fails.
            Interrupted: when this process is told to end; nothing of the command runs any more.
        """
        environment = {**os.environ, **additional_env}
        process = subprocess.Popen(
            [self.command, "--non-interactive", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={**environment, **toolchain.mark(), "PULUMI_AUTOMATION_API": "true"},
            encoding="utf-8",
            # A terminal's Ctrl-C is for this process, which passes it on: a second one ends the
            # engine at once.
            start_new_session=True,
        )
        readers = [_Reader(process.stdout, on_output), _Reader(process.stderr, on_error)]
        # From the start: if this process is killed, the note alone tells who held the lock.
        note = locking.Note(process, args, environment)
        try:
            note.write()
            for reader in readers:
                reader.join()
            code = process.wait()
        except Interrupted as interruption:
            _stop(process, None if interruption.patient else _IMPATIENT)
            for reader in readers:
                reader.join(_LAST_WORDS)
            raise
        finally:
            note.remove()
        result = automation.CommandResult(readers[0].text, readers[1].text, code)
        if code != 0:
            raise create_command_error(result)
        return result


class _Reader(threading.Thread):
    """Reads a stream to its end, in a thread: the engine's other stream must not wait for it."""

    def __init__(self, stream: IO[str] | None, heard: _Output) -> None:
        super().__init__(daemon=True)
        assert stream is not None
        self._stream, self._heard = stream, heard
        self._lines: list[str] = []
        self.start()

    def run(self) -> None:
        """Read."""
        with self._stream:
            for line in self._stream:
                self._lines.append(line.rstrip())
                # The engine stops if its output is not read, whether or not ours is.
                with contextlib.suppress(OSError):
                    if self._heard:
                        self._heard(line.rstrip())

    @property
    def text(self) -> str:
        """Return what was read."""
        return "\n".join(self._lines)


def _stop(process: subprocess.Popen[str], seconds: float | None) -> None:
    """Let the engine finish what it has begun, for some time or until a second signal."""
    # The terminal may be closed.
    with contextlib.suppress(OSError):
        click.echo("interrupted: the engine finishes what it has begun", err=True)
        if seconds is None:
            click.echo("(Ctrl-C once more ends it now; `tpustack recover` repairs that)", err=True)
    process.send_signal(signal.SIGINT)
    waited = 0.0
    while process.poll() is None and not hurry.is_set() and (seconds is None or waited < seconds):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL)
        waited += _POLL
    # Also where the engine has ended well: its language host has a group of its own.
    toolchain.end_own()
    process.wait()


def outputs_of(stack: str | None) -> dict[str, Any]:
    """Return the outputs of `stack`, or of the one that Pulumi selected; create none.

    Raises:
        UsageError: when there is no such stack, or nothing of it is deployed.
    """
    name = named(stack)
    outputs = users_own().stack(name).outputs()
    if "vm_name" not in outputs:
        raise UsageError(
            f"the stack {name} has nothing up to look into; `pulumi up --stack {name}` makes it"
        )
    return outputs
