"""Errors that end a command with one message."""

from __future__ import annotations


class TpustackError(Exception):
    """A failure that its message explains; exit code 1."""

    exit_code = 1


class UsageError(TpustackError):
    """Wrong input; exit code 2."""

    exit_code = 2
