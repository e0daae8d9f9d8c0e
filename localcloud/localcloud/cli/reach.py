"""`reach`: whether a machine reaches another at a port, and which route and rules decide."""

from __future__ import annotations

import argparse
import json
from typing import Any

from localcloud.cli.client import Commands, ask

_UNREACHABLE = 1


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "reach",
        parents=[common],
        help="say whether a machine reaches another, and by which rule",
        description="Exit code 0: it does; 1: it does not.",
    )
    command.add_argument("source", help="VM, TPU, TPU/HOST or an address")
    command.add_argument("destination", help="the same with :PORT, such as my-tpu/1:8470")
    command.add_argument("--protocol", default="tcp", help="tcp, udp, icmp, … (default: tcp)")
    command.add_argument("--json", action="store_true", help="print the answer as JSON")
    command.set_defaults(run=_reach)


def _reach(options: argparse.Namespace) -> int:
    asked = {name: getattr(options, name) for name in ("source", "destination", "protocol")}
    answer = ask(options.home, "POST", "reach", asked)
    print(json.dumps(answer, indent=2) if options.json else _text(answer))
    return 0 if answer["result"] == "REACHABLE" else _UNREACHABLE


def _text(answer: dict[str, Any]) -> str:
    verbs = {"REACHABLE": "reaches", "UNREACHABLE": "does not reach"}
    port = f" {answer['port']}" if answer["port"] else ""
    head = (
        f"{answer['source']} {verbs.get(answer['result'], 'may or may not reach')} "
        f"{answer['destination']} by {answer['protocol']}{port}"
    )
    return "\n".join([head, *(f"  {step}" for step in answer["steps"])])
