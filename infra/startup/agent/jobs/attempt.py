"""One try of a job on this machine: a folder through which runner and supervisor talk.

    try.json    what to run (written before the supervisor starts)
    log         everything that it writes
    started     made by its supervisor, so that no second one ever runs the same try
    lock        held while its supervisor lives (child.py, which has more files here)
    heartbeat   written by the runner while it is sure of its lease
    end         written by the runner: why the try is to end
    ended       how it ended: written last

A runner that was killed and comes back finds all of it again. The last three have their place on
the disk from the beginning, so that a job which fills the disk ends no try as if the machine had
gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..child import Child
from ..versioned import Unreadable, dump, load
from .identity import kill_all
from .record import Outcome

MARK = "TPU_STACK_TRY"
"""A variable of each process of a try, by which all of them are found."""
_PROC = Path("/proc")
_PAUSE = 0.02
_PLACE = 4096
_MOST_SAID = 300
_FULL = 16 << 20


class Attempt:
    """The folder of a try."""

    def __init__(self, folder: Path) -> None:
        """Use a folder, which need not be there yet."""
        self.folder = folder
        self.log = folder / "log"
        self._child: Child | None = None

    def prepare(self, content: Mapping[str, Any]) -> None:
        """Write what the supervisor reads, unless it is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        if not self.is_prepared:
            for name in ("heartbeat", "end", "ended"):
                (self.folder / name).write_bytes(b" " * _PLACE)
            mark = f"{content['job']}-{uuid.uuid4().hex}"
            part = self.folder / "try.json.part"
            part.write_bytes(dump({**content, "mark": mark}))
            part.replace(self.folder / "try.json")

    def content(self) -> dict[str, Any]:
        """Return what to run."""
        return dict(json.loads((self.folder / "try.json").read_text("utf-8")))

    def start(self, program: Path) -> None:
        """Start the supervisor with the agent's program, unless one runs. It outlives this process.

        Raises:
            OSError: if no process can be made.
        """
        environment = {**os.environ, MARK: self.content()["mark"]}
        command = [sys.executable, str(program), "try", str(self.folder)]
        # Whoever looks whether it runs has its lock for a moment.
        while not self._supervisor().start(1, command, environment) and not self.was_started:
            time.sleep(_PAUSE)

    def claim(self) -> bool:
        """Return whether this process is the try's first supervisor."""
        try:
            (self.folder / "started").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @property
    def is_prepared(self) -> bool:
        """Return whether this machine has what is needed to run it."""
        return (self.folder / "try.json").exists()

    @property
    def was_started(self) -> bool:
        """Return whether a supervisor has ever run it."""
        return (self.folder / "started").exists()

    def is_running(self) -> bool:
        """Return whether its supervisor is alive, whoever started it."""
        return self._supervisor().running()

    def beat(self, now: float) -> None:
        """Tell the supervisor that the machine had the TPU at that moment."""
        self._put("heartbeat", f"{now:020.3f}".encode())

    def last_beat(self) -> float | None:
        """Return the last such moment."""
        try:
            return float((self.folder / "heartbeat").read_text("ascii"))
        except (OSError, ValueError):
            return None

    def end(self, why: str, said: str = "", code: int | None = None) -> None:
        """Have the supervisor end the try; the first reason counts."""
        if self.is_to_end() is None:
            self._put("end", dump(Outcome(why, code, said[:_MOST_SAID])))

    def is_to_end(self) -> Outcome | None:
        """Return why the try is to end, or None."""
        return self._outcome("end")

    def finish(self, outcome: Outcome) -> None:
        """Say how it ended."""
        self._put("ended", dump(replace(outcome, said=printable(outcome.said)[:_MOST_SAID])))

    def ended(self) -> Outcome | None:
        """Return how it ended, or None."""
        return self._outcome("ended")

    def ask_to_end(self) -> None:
        """Send SIGTERM to every process of the try but this one."""
        for process in self._others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    def kill(self, seconds: float = 5.0) -> bool:
        """Kill every process of the try, also what has left its session.

        Returns:
            False if one is left after that time: the kernel ends none that waits for a driver.
        """
        end = time.monotonic() + seconds
        kill_all()
        while (found := self._others()) and time.monotonic() < end:
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.is_running()  # Buries it, if it is a child of this process.
            time.sleep(_PAUSE)
            kill_all()
        return not found

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _others(self) -> set[int]:
        """Return the try's processes but this one and the shell that keeps its exit code."""
        return _marked(self.content()["mark"]) - {os.getpid(), os.getppid()}

    def _supervisor(self) -> Child:
        if self._child is None:
            self._child = Child(self.folder)
        return self._child

    def _put(self, name: str, data: bytes) -> None:
        """Write over a file that has its place already, at once."""
        with (self.folder / name).open("r+b", buffering=0) as file:
            file.write(data.ljust(_PLACE))

    def _outcome(self, name: str) -> Outcome | None:
        try:
            return load(Outcome, (self.folder / name).read_bytes())
        except (OSError, Unreadable):
            return None


def any_running(folder: Path) -> bool:
    """Return whether any try runs whose folder lies in `folder`."""
    return any(Attempt(path.parent).is_running() for path in folder.glob("*/try.json"))


def printable(text: str) -> str:
    """Return a text that may name a file whose name is no text, with escapes for what is none."""
    return text.encode(errors="backslashreplace").decode()


def why_full(folder: Path) -> str:
    """Return that the disk of a folder is full, for people; empty if it is not."""
    return "the machine's disk is full" if shutil.disk_usage(folder).free < _FULL else ""


def _marked(mark: str) -> set[int]:
    """Return the living processes whose environment has the mark."""
    entry, found = f"{MARK}={mark}".encode(), set()
    for path in _PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            # That of a zombie is empty.
            if entry in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found
