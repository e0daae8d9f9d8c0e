"""`logs`: the emulator's log, its requests, or a machine's serial port."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from localcloud.cli.client import Commands, ask

_FILES = {"cloud": "localcloud.log", "requests": "requests.log"}


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    logs = commands.add_parser("logs", parents=[common], help="its log, or a machine's serial port")
    logs.add_argument(
        "source",
        nargs="?",
        default="cloud",
        help="cloud, requests, or the name of a VM or TPU (default: cloud)",
    )
    logs.add_argument("--follow", "-f", action="store_true", help="follow until Ctrl-C")
    logs.set_defaults(run=_logs)


def _logs(options: argparse.Namespace) -> int:
    file = _FILES.get(options.source)
    pieces = _file(options.home / file) if file else _serial(options.home, options.source)
    for piece in pieces:
        print(piece, end="", flush=True)
        if not piece:
            if not options.follow:
                break
            time.sleep(0.3)
    return 0


def _file(path: Path) -> Iterator[str]:
    path.touch()
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            yield file.read()


def _serial(home: Path, machine: str) -> Iterator[str]:
    start = 0
    while True:
        answer = ask(home, "POST", "serial", {"machine": machine, "start": start})
        start = answer["next"]
        yield answer["contents"]
