"""`permissions`: those that somebody's calls asked for, which a least role must hold."""

from __future__ import annotations

import argparse
import json

from localcloud.cli.client import Commands, ask


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "permissions",
        parents=[common],
        help="show what calls asked of IAM since the start",
    )
    command.add_argument(
        "member", nargs="?", help="such as user:… or serviceAccount:… (default: everybody)"
    )
    command.add_argument("--json", action="store_true", help="by member, true where it was granted")
    command.add_argument("--clear", action="store_true", help="forget them afterwards")
    command.set_defaults(run=_permissions)


def _permissions(options: argparse.Namespace) -> int:
    asked = ask(options.home, "GET", "permissions")
    if options.clear:
        ask(options.home, "DELETE", "permissions")
    if options.member:
        asked = {options.member: asked.get(options.member, {})}
    if options.json:
        print(json.dumps(asked, indent=2, sort_keys=True))
        return 0
    for member, permissions in sorted(asked.items()):
        print(member)
        for permission, granted in sorted(permissions.items()):
            print(f"  {permission}{'' if granted else '  (refused)'}")
    return 0
