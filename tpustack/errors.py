"""Errors that end a command with one message."""

from __future__ import annotations


class TpustackError(Exception):
    """A failure that its message explains; exit code 1."""

    exit_code = 1


class UsageError(TpustackError):
    """Wrong input; exit code 2."""

    exit_code = 2


def diagnostics(text: str) -> str:
    """Why the engine failed, out of the Automation API's dump of everything that it wrote."""
    out, _, err = text.rpartition("\n stderr:")
    _, found, rest = out.partition("Diagnostics:")
    return (rest if found else err).strip() or text.strip()
