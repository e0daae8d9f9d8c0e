"""Talks to the running emulator."""

from __future__ import annotations

import argparse
import http.client
import json
import os
from pathlib import Path
from typing import Any, TypeAlias

from localcloud.core.cloud import admin_key

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class CommandError(Exception):
    """A command that fails with one message."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def typed() -> str:
    """Return the command as somebody types it; `tpustack local` passes its own name on."""
    return os.environ.get("LOCALCLOUD_PROG") or "python -m localcloud"


def run_file(home: Path) -> Path:
    """Return the file in which a running emulator leaves its process id and port."""
    return home / "run.json"


def running(home: Path) -> dict[str, int] | None:
    """Return process id and port of the emulator that runs on `home`, or None."""
    try:
        known: dict[str, int] = json.loads(run_file(home).read_text(encoding="utf-8"))
        os.kill(known["pid"], 0)
        # The process id may belong to another process by now; the answer on the port decides.
        status = _request(home, known["port"], "GET", "status", {})
    except (OSError, ValueError, KeyError, http.client.HTTPException, CommandError):
        return None
    # The next emulator may have the same port before it says so in its run file.
    answers = status["home"], status["pid"]
    return known if answers == (str(home), known["pid"]) else None


def ask(home: Path, verb: str, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call the emulator's own API.

    Raises:
        CommandError: with its message, or that it does not run (exit code 3).
    """
    known = running(home)
    if known is None:
        raise CommandError(
            f"the local cloud of {home} is not running; start it with `{typed()} start`",
            exit_code=3,
        )
    return _request(home, known["port"], verb, name, body or {})


def _request(home: Path, port: int, verb: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
    key = admin_key((home / "secret").read_bytes())
    headers = {"Local-Cloud": key, "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(verb, f"/_local/v1/{name}", json.dumps(body), headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    if response.status >= 400:
        code = 2 if response.status in (400, 404) else 1
        raise CommandError(answer["error"]["message"], code)
    return answer
