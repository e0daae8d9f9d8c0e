"""Options and arguments that the commands of jobs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tpustack import console

_F = TypeVar("_F", bound=Callable[..., Any])
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 365 * 86400.0


def place(command: _F) -> _F:
    """Declare `--stack` and `--bucket`, one of which says where the queue is."""
    bucket = click.option("--bucket", help="The queue of this bucket: gs://BUCKET.")
    return console.stack("The queue of this stack.")(bucket(command))


def job(command: _F) -> _F:
    """Declare the argument JOB, the name of one."""
    return click.argument("job", shell_complete=_names)(command)


class Span(click.ParamType[float]):
    """A duration in seconds, written like 90s, 30m, 2h or 1d."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds. Fails the command, exit code 2, if it is none or out of range."""
        found = _SPAN.fullmatch(str(value))
        seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
        if not 0 < seconds <= _LONGEST:
            self.fail(f"{value!r} is no duration. Write it like 90s, 30m or 2h", param)
        return seconds


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the jobs of the queue that the options before name."""
    from tpustack.errors import TpustackError
    from tpustack.jobs.place import explained, open_queue

    try:
        queue = open_queue(ctx.params.get("stack"), ctx.params.get("bucket"))
        with explained(queue):
            return sorted(name for name in queue.summaries() if name.startswith(incomplete))
    except TpustackError:
        return []
