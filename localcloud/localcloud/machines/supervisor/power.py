"""`shutdown`, `poweroff`, `halt` and `reboot`: the guest asks to be turned off."""

from __future__ import annotations

from localcloud.machines.supervisor.reply import Arguments, Reply, Usage
from localcloud.machines.supervisor.system import System


def shutdown(system: System, reply: Reply, arguments: list[str]) -> None:
    """Turn off, or with -r reboot, now; a later moment is not supported."""
    parser = Arguments("shutdown")
    for flag in ("--poweroff -P", "--halt -h -H", "--reboot -r"):
        parser.add_argument(*flag.split(), action="store_true")
    parser.add_argument("when", nargs="?", default="+1")
    parsed = parser.parse_args(arguments)
    if parsed.when not in ("now", "+0"):
        raise Usage(f"{parsed.when}: the local machine can only shut down 'now'")
    ask(system, reply, "reboot" if parsed.reboot else "poweroff")


def end(mode: str, system: System, reply: Reply, arguments: list[str]) -> None:
    """Turn off (`poweroff`), or off and on again (`reboot`)."""
    parser = Arguments(mode)
    parser.add_argument("--force", "-f", action="store_true")
    parser.parse_args(arguments)
    ask(system, reply, mode)


def ask(system: System, reply: Reply, mode: str) -> None:
    """Answer the command, then tell the emulator, which halts the machine."""
    reply.done()
    system.ask_power(mode)
