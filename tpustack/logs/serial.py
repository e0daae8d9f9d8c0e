"""Follows a VM's serial port line by line until the training on it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tpustack.cloud.google import Google, NotFound
from tpustack.console import unbroken
from tpustack.errors import TpustackError
from tpustack.logs.words import Ended, Progress, Story, current_boot

INSTANCE = "https://compute.googleapis.com/compute/v1/projects/{}/zones/{}/instances/{}"
# After this many answers without news, a new VM may have taken the name.
_SILENT = 10


def port_url(project: str, zone: str, vm: str) -> str:
    """Return the address of a VM's serial port."""
    return f"{INSTANCE.format(project, zone, vm)}/serialPort"


def lines(
    google: Google,
    *,
    project: str,
    zone: str,
    vm: str,
    interval: float = 0.5,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str | None]:
    """Yield the serial port's lines of this boot as they come; None whenever there is nothing new.

    When its group replaces the VM, wait for the new one and read it from the beginning.

    Raises:
        TpustackError: when there was never such a VM.
    """
    known, silent = "", _SILENT
    start, rest, backlog = 0, "", True
    while True:
        try:
            if silent >= _SILENT:
                number = _number(google, project, zone, vm)
                if number != known:
                    known, start, rest, backlog = number, 0, "", True
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
        if backlog and answer.get("contents"):
            # What is there already may begin with earlier boots, which are over.
            rest = text
            continue
        *whole, rest = (current_boot(text) if backlog else text).split("\n")
        backlog = False
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
    on_silence: Callable[[], None],
    silence: float,
    now: Callable[[], float] = time.monotonic,
) -> Ended:
    """Follow until the training has succeeded, or nothing on the VM will start it again.

    Args:
        source: as `lines` gives them.
        on_line: gets every line that is not progress.
        on_progress: gets every line that is.
        on_silence: is called after `silence` seconds without a line, again and again; raises an
            error to give up.
        silence: long compilations and installations write nothing for minutes.
        now: the clock.
    """
    last = now()
    story = Story()
    for line in source:
        if line is None:
            if now() - last > silence:
                on_silence()
                last = now()
            continue
        last = now()
        line = unbroken(line)
        said = story.read(line)
        if isinstance(said, Ended):
            return said
        if isinstance(said, Progress):
            on_progress(said)
        else:
            on_line(line)
    raise TpustackError("the serial port ended before the training did")
