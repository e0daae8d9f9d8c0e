"""Run other programs so that none of them outlives this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from toolchain.errors import ToolchainError, without_hosts

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_SECONDS = 5.0
_LAST_LINES = 15


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda _: None,
) -> str:
    """Run a command and return its standard output; `on_line` sees each line of its errors."""
    process: subprocess.Popen[str] | None = None
    errors: list[str] = []
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
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=_read, args=(process.stderr, errors, on_line), daemon=True)
        reader.start()
        output = process.stdout.read()
        process.wait()
        reader.join()
    except BaseException:
        if process:
            _stop(process)
        raise
    if process.returncode != 0:
        said = without_hosts("".join(errors) or output).strip()
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


def _read(stream: IO[str], lines: list[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        lines.append(line)
        on_line(line)


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process and its children: politely first, then for sure."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_GRACE_SECONDS)
            return
