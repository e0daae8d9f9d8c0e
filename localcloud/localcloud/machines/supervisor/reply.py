"""The answer to a guest's command, and how its arguments are taken apart."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn


class Usage(ValueError):
    """Arguments that the command doesn't take."""


class Reply:
    """Answers one command, once, now or later.

    Args:
        send: gets the answer.
        path: the caller's PATH.
        cwd: the caller's working directory.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None], path: str, cwd: str) -> None:
        self._send = send
        self.path = path
        self.cwd = cwd

    def done(self, out: str = "", *, err: str = "", code: int = 0) -> None:
        """Let the command print `out` and `err` and exit with `code`."""
        self._send({"out": out, "err": err, "code": code})

    def fail(self, message: str, code: int) -> None:
        """Let the command print one line on standard error and exit with `code`."""
        self.done(err=f"{message}\n", code=code)


class Arguments(argparse.ArgumentParser):
    """An argument parser that raises `Usage`, so that an unknown option fails by name."""

    def __init__(self, program: str) -> None:
        super().__init__(prog=program, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting: the parser runs in the machine's first process."""
        raise Usage(f"{message} (the local machine's {self.prog})")
