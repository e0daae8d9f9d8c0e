"""Extracts why an operation failed from everything that the engine wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pulumi import automation

from tpustack.errors import TpustackError, UsageError, diagnostics
from tpustack.logs.diagnosis import diagnose

# What follows from an error, or repeats it in other words.
_REPEATS = re.compile(
    r"an unhandled error occurred: program exited|expected resource operations for .* none were"
    r"|sdk-v2/provider|update failed$"
)


@contextmanager
def explained(verb: str, stack: str) -> Iterator[None]:
    """Turn the engine's errors within the block into one message about `pulumi VERB`.

    Raises:
        UsageError: when the backend has no such stack.
        TpustackError: when the engine fails, with its diagnostics.
    """
    what = f"pulumi {verb} of stack {stack}"
    try:
        yield
    except automation.StackNotFoundError:
        raise UsageError(
            f"{what}: the backend has no such stack; `pulumi up --stack {stack}` makes it"
        ) from None
    except automation.CommandError as error:
        raise TpustackError(with_cures(f"{what} failed:\n{diagnostics(str(error))}")) from None


def reason(message: str, errors: Sequence[str] = ()) -> str:
    """Return why a command failed: the engine's own errors, or what it wrote to stderr."""
    if told := [error for error in dict.fromkeys(errors) if not _REPEATS.match(error)]:
        return with_cures("\n".join(told))
    _, _, said = message.rpartition("\n stderr:")
    lines = [line.removeprefix("error: ") for line in said.strip().splitlines()]
    return with_cures("\n".join(lines) or message.strip())


def with_cures(text: str) -> str:
    """Return what the engine said, followed by the cures of Google's errors in it."""
    cures = dict.fromkeys(finding.known.cure for finding in diagnose("", text).findings)
    # The program says it, too (infra/cures.py).
    return "\n".join([text, *(f"Cure: {cure}." for cure in cures if cure not in text)])
