"""`python -m localcloud start|status|stop|reset|env|logs|faults|forward|permissions|reach`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from localcloud import __version__
from localcloud.cli import environment, faults, forward, lifecycle, logs, permissions, reach
from localcloud.cli.client import CommandError, typed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 1 failure, 2 wrong input, 3 not running."""
    options = _parser().parse_args(arguments)
    options.home = options.home.expanduser().absolute()
    try:
        code: int = options.run(options)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        sys.stderr.close()
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    home = Path(os.environ.get("LOCALCLOUD_HOME", ".localcloud"))
    text = "folder of its state (default: $LOCALCLOUD_HOME, or .localcloud here)"
    common.add_argument("--home", type=Path, default=home, help=text)
    parser = argparse.ArgumentParser(
        prog=os.environ.get("LOCALCLOUD_PROG") or "localcloud",
        description="Google Cloud on localhost, with VMs and TPUs that really run.",
        epilog=f'Point this shell\'s clients at it: eval "$({typed()} env)"',
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    lifecycle.add_commands(commands, common)
    environment.add_commands(commands, common)
    logs.add_commands(commands, common)
    faults.add_commands(commands, common)
    forward.add_commands(commands, common)
    permissions.add_commands(commands, common)
    reach.add_commands(commands, common)
    return parser
