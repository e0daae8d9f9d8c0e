"""Follows a VM's serial port line by line until the training on it ends."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpustack.cloud.google import Google, NotFound
from tpustack.errors import TpustackError

INSTANCE = "https://compute.googleapis.com/compute/v1/projects/{}/zones/{}/instances/{}"
# After this many answers without news, a new VM may have taken the name.
_SILENT = 10
_PROGRESS = re.compile(r"progress step=(\d+)/(\d+)(.*)")
_FIELD = re.compile(r"(\w+)=(\S+)")
_END = re.compile(r"training (finished|failed)(.*)")


@dataclass(frozen=True)
class Progress:
    """One line of progress: the step, of how many, and the trainer's figures."""

    step: int
    steps: int
    figures: dict[str, str]


@dataclass(frozen=True)
class Ended:
    """The trainer's last line."""

    succeeded: bool
    message: str


def port_url(project: str, zone: str, vm: str) -> str:
    """Return the address of a VM's serial port."""
    return f"{INSTANCE.format(project, zone, vm)}/serialPort"


def parse(line: str) -> Progress | Ended | None:
    """Parse what a line of the serial port says about the training; None if nothing."""
    found = _PROGRESS.search(line)
    if found:
        step, steps, rest = found.groups()
        return Progress(int(step), int(steps), dict(_FIELD.findall(rest)))
    ended = _END.search(line)
    if ended:
        return Ended(ended.group(1) == "finished", ended.group(2).strip(" :"))
    return None


def lines(
    google: Google,
    *,
    project: str,
    zone: str,
    vm: str,
    interval: float = 0.5,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str | None]:
    """Yield the serial port's lines as they come; None whenever there is nothing new.

    When its group replaces the VM, wait for the new one and read it from the beginning.

    Raises:
        TpustackError: when there was never such a VM.
    """
    known, silent = "", _SILENT
    start, rest = 0, ""
    while True:
        try:
            if silent >= _SILENT:
                number = _number(google, project, zone, vm)
                if number != known:
                    known, start, rest = number, 0, ""
                silent = 0
            answer = google.get(port_url(project, zone, vm), {"port": 1, "start": start})
        except NotFound:
            if not known:
                raise
            silent = _SILENT
            yield None
            sleep(interval)
            continue
        start = int(answer["next"])
        text = rest + answer.get("contents", "")
        *whole, rest = text.split("\n")
        yield from whole
        if not whole:
            silent += 1
            yield None
            sleep(interval)


def _number(google: Google, project: str, zone: str, vm: str) -> str:
    """Return the number that tells a VM from an earlier one of the same name."""
    return str(google.get(INSTANCE.format(project, zone, vm), {"fields": "id"})["id"])


def wait_for_end(
    source: Iterator[str | None],
    *,
    on_line: Callable[[str], None],
    on_progress: Callable[[Progress], None],
    deadline: float,
    now: Callable[[], float] = time.monotonic,
) -> Ended:
    """Follow until the training says that it ended.

    Args:
        source: as `lines` gives them.
        on_line: gets every line that is not progress.
        on_progress: gets every line that is.
        deadline: seconds without any line after which the training counts as stuck.
        now: the clock.

    Raises:
        TpustackError: when nothing was written for `deadline` seconds.
    """
    last = now()
    for line in source:
        if line is None:
            if now() - last > deadline:
                raise TpustackError(
                    f"the VM wrote nothing to its serial port for {deadline:.0f} s; "
                    "`tpustack local logs` shows what the machines do"
                )
            continue
        last = now()
        said = parse(line)
        if isinstance(said, Ended):
            return said
        if isinstance(said, Progress):
            on_progress(said)
        else:
            on_line(line)
    raise TpustackError("the serial port ended before the training did")
