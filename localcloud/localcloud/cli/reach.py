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
    command.add_argument(
        "--json", action="store_true", help="as ReachabilityDetails of Google's Connectivity Tests"
    )
    command.set_defaults(run=_reach)


def _reach(options: argparse.Namespace) -> int:
    asked = {name: getattr(options, name) for name in ("source", "destination", "protocol")}
    answer = ask(options.home, "POST", "reach", asked)
    details = answer["reachabilityDetails"]
    print(json.dumps(details, indent=2) if options.json else _told(answer))
    return 0 if details["result"] == "REACHABLE" else _UNREACHABLE


def _told(answer: dict[str, Any]) -> str:
    details = answer["reachabilityDetails"]
    word = {"REACHABLE": "reaches", "UNREACHABLE": "does not reach"}
    port = f" {answer['port']}" if answer["port"] else ""
    head = (
        f"{answer['source']} {word.get(details['result'], 'may or may not reach')} "
        f"{answer['destination']} by {answer['protocol']}{port}"
    )
    steps = details["traces"][0]["steps"]
    return "\n".join([head, *(f"  {line}" for line in map(_line, steps) if line)])


def _line(step: dict[str, Any]) -> str:
    if "firewall" in step:
        rule = step["firewall"]
        by = f"rule {rule['displayName']}" if "uri" in rule else "the implied rule"
        verb = "allowed" if rule["action"] == "ALLOW" else "denied"
        return f"{rule['direction'].lower():8}{verb} by {by}, priority {rule['priority']}"
    if "route" in step:
        route = step["route"]
        hop = route["nextHopType"].removeprefix("NEXT_HOP_").replace("_", " ").lower()
        return f"route   {route['displayName']}, {route['destIpRange']} by way of {hop}"
    if "nat" in step:
        return f"nat     {step['nat']['natGatewayName']}"
    for end in ("drop", "abort"):
        if end in step:
            return f"{end:8}{step[end]['cause']}"
    return "forward into Google's own network" if "forward" in step else ""
