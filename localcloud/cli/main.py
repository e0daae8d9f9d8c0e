"""`python -m localcloud start|status|stop|reset|env|logs|faults`."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from localcloud.app import LocalCloud


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the answer is the exit code."""
    options = _parser().parse_args(arguments)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    running = LocalCloud(options.home, port=options.port, latency=options.latency)
    running.start()
    print(f"the local cloud listens on 127.0.0.1:{running.listener.port}", flush=True)
    stopped.wait()
    running.stop()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="localcloud", description="Google Cloud on localhost")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start it")
    home = Path(os.environ.get("LOCALCLOUD_HOME", ".localcloud"))
    start.add_argument("--home", type=Path, default=home)
    start.add_argument("--port", type=int, default=0)
    start.add_argument("--latency", choices=("none", "real"), default="none")
    start.add_argument("--foreground", action="store_true")
    return parser
