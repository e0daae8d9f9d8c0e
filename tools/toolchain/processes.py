"""Run other programs so that none of them outlives this one, and say what is going on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from toolchain.pins import ToolchainError, without_hosts

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_SECONDS = 5.0
_LAST_LINES = 15
LINE_EVERY_SECONDS = 15.0


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its standard output. Raises ToolchainError if it fails."""
    process: subprocess.Popen[str] | None = None
    try:
        with _held_back():
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=cwd,
                env=None if env is None else {**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # so that its children can be stopped with it
            )
        output, errors = process.communicate()
    # KeyboardInterrupt, too: no child may outlive this process.
    except BaseException:
        if process:
            _stop(process)
        raise
    if process.returncode != 0:
        said = without_hosts(errors or output).strip()
        last = "\n".join(said.splitlines()[-_LAST_LINES:])
        raise ToolchainError(f"{Path(str(command[0])).name} failed:\n{last}")
    return output


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Let signals wait: a program that is being started cannot be stopped yet."""
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in STOPS
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process and its children: politely first, then for sure."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_SECONDS)
            return


def say(message: str) -> None:
    """Tell the person; standard output stays free for the result."""
    print(f"tools: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def patience(what: str) -> Iterator[None]:
    """Say what takes its time, again now and then, so that it does not look hung."""
    begun, over = time.monotonic(), threading.Event()

    def keep_saying() -> None:
        while not over.wait(LINE_EVERY_SECONDS):
            say(f"{what} ({time.monotonic() - begun:.0f} s)")

    say(what)
    thread = threading.Thread(target=keep_saying, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
