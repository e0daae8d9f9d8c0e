"""`journalctl`: the output of this boot's units."""

from __future__ import annotations

from datetime import datetime, timezone

from localcloud.machines.supervisor.console import Entry
from localcloud.machines.supervisor.reply import Arguments, Reply
from localcloud.machines.supervisor.system import System, full_name


def run(system: System, reply: Reply, arguments: list[str]) -> None:
    """Answer the journal's lines."""
    parser = Arguments("journalctl")
    parser.add_argument("--unit", "-u", action="append", default=[])
    parser.add_argument("--lines", "-n", type=int, default=0)
    parser.add_argument("--output", "-o", choices=("short", "cat"), default="short")
    for flag in ("--no-pager", "--boot -b", "--quiet -q"):
        parser.add_argument(*flag.split(), action="store_true")
    parsed = parser.parse_args(arguments)
    entries = system.console.journal({full_name(name) for name in parsed.unit})
    reply.done(lines(system, entries[-parsed.lines :], parsed.output))


def lines(system: System, entries: list[Entry], form: str) -> str:
    """Return journal entries as text, a line each."""
    if form == "cat":
        return "".join(f"{entry.text}\n" for entry in entries)
    return "".join(
        f"{datetime.fromtimestamp(entry.when, timezone.utc):%b %d %H:%M:%S} {system.host} "
        f"{entry.identifier}[{entry.pid}]: {entry.text}\n"
        for entry in entries
    )
