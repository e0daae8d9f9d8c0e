"""`forward`: sets the cloud's clock ahead, for what Google does after hours."""

from __future__ import annotations

import argparse

from localcloud.cli.client import Commands, ask


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "forward",
        parents=[common],
        help="set the cloud's clock ahead, until it stops: what is due by then happens now",
    )
    command.add_argument("seconds", type=float, help="more than 0; tokens grow older, too")
    command.set_defaults(run=_forward)


def _forward(options: argparse.Namespace) -> int:
    print(ask(options.home, "POST", "forward", {"seconds": options.seconds})["now"])
    return 0
