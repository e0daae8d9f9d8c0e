"""Runs the `pulumi` command so that nothing of it is left when this process is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO

import click
from pulumi import automation
from pulumi.automation.errors import create_command_error

from tpustack.console import Interrupted, hurry
from tpustack.engine import leftovers
from tpustack.recovery.holders import Note

_POLL = 0.1
# After a signal that is not Ctrl-C a pipeline kills within ten seconds or so.
_IMPATIENT = 5.0
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
            env={**environment, **leftovers.mark(), "PULUMI_AUTOMATION_API": "true"},
            encoding="utf-8",
            # A terminal's Ctrl-C is for this process, which passes it on: a second one ends the
            # engine at once.
            start_new_session=True,
        )
        readers = [_Reader(process.stdout, on_output), _Reader(process.stderr, on_error)]
        note = Note(process, args, environment)
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
    """Reads a stream to its end."""

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
                # The engine stops if nobody reads it, whether or not somebody reads us.
                with contextlib.suppress(OSError):
                    if self._heard:
                        self._heard(line.rstrip())

    @property
    def text(self) -> str:
        """Return what was read."""
        return "\n".join(self._lines)


def _stop(process: subprocess.Popen[str], seconds: float | None) -> None:
    """Let the engine finish what it has begun, for some time or until somebody asks again."""
    # Of a terminal that was closed nobody reads.
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
    leftovers.end_own()
    process.wait()
