"""`systemctl`: what it can say about services and do to them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

from localcloud.machines.supervisor import power
from localcloud.machines.supervisor.journalctl import lines
from localcloud.machines.supervisor.reply import Arguments, Reply
from localcloud.machines.supervisor.system import System, full_name
from localcloud.machines.supervisor.unit import Unit
from localcloud.machines.supervisor.unit_file import UnitError

_NO_SUCH_UNIT = 5
_NOT_RUNNING = 3
_UNKNOWN = 4


def run(system: System, reply: Reply, arguments: list[str]) -> None:
    """Run one verb on the units that are named."""
    parser = Arguments("systemctl")
    for flag in ("--quiet -q", "--now", "--no-pager", "--no-block", "--force -f", "--full -l"):
        parser.add_argument(*flag.split(), action="store_true")
    parser.add_argument("verb")
    parser.add_argument("units", nargs="*")
    # Options may stand between the verb and the units.
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.verb in ("poweroff", "halt", "reboot"):
        power.ask(system, reply, "reboot" if parsed.verb == "reboot" else "poweroff")
        return
    if parsed.verb == "daemon-reload":
        system.reload()
        reply.done()
        return
    if parsed.verb not in (*_QUESTIONS, *_ACTIONS):
        raise UnitError(f"Unknown command verb {parsed.verb}. (the local machine's systemctl)")
    if parsed.verb == "reset-failed" and not parsed.units:
        parsed.units = list(system.units)
    if not parsed.units:
        raise UnitError("Too few arguments.")
    names = [full_name(name) for name in parsed.units]
    if parsed.verb in _QUESTIONS:
        states, code = _QUESTIONS[parsed.verb](system, names)
        told = "" if parsed.quiet else "".join(f"{state}\n" for state in states)
        reply.done(told, code=code)
        return
    try:
        units = [system.find(name) for name in names]
    except UnitError as error:
        reply.fail(str(error), _UNKNOWN if parsed.verb == "status" else _NO_SUCH_UNIT)
        return
    _ACTIONS[parsed.verb](system, reply, units, parsed.now)


def _start(system: System, reply: Reply, units: list[Unit], now: bool) -> None:
    for unit in units:
        unit.start()
    _when_all(units, lambda: _started(reply, units))


def _stop(system: System, reply: Reply, units: list[Unit], now: bool) -> None:
    for unit in units:
        unit.stop()
    _when_all(units, reply.done)


def _restart(system: System, reply: Reply, units: list[Unit], now: bool) -> None:
    for unit in units:
        unit.stop()
    _when_all(units, lambda: _start(system, reply, units, now))


def _status(system: System, reply: Reply, units: list[Unit], now: bool) -> None:
    told = "\n".join(_describe(system, unit) for unit in units)
    up = all(unit.state in ("active", "activating") for unit in units)
    reply.done(told, code=0 if up else _NOT_RUNNING)


def _reset(system: System, reply: Reply, units: list[Unit], now: bool) -> None:
    for unit in units:
        unit.reset()
    reply.done()


def _enable(system: System, reply: Reply, units: list[Unit], now: bool) -> None:
    for unit in units:
        if not unit.spec.wanted:
            raise UnitError(f"The unit {unit.spec.name} has no [Install] section to enable it by.")
        system.enable(unit.spec.name, on=True)
        if now:
            unit.start()
    reply.done()


def _disable(system: System, reply: Reply, units: list[Unit], now: bool) -> None:
    for unit in units:
        system.enable(unit.spec.name, on=False)
        if now:
            unit.stop()
    reply.done()


_ACTIONS: dict[str, Callable[[System, Reply, list[Unit], bool], None]] = {
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "status": _status,
    "reset-failed": _reset,
    "enable": _enable,
    "disable": _disable,
}


def _is_active(system: System, names: list[str]) -> tuple[list[str], int]:
    states = _states(system, names)
    return states, 0 if "active" in states else _NOT_RUNNING


def _is_failed(system: System, names: list[str]) -> tuple[list[str], int]:
    states = _states(system, names)
    return states, 0 if "failed" in states else 1


def _is_enabled(system: System, names: list[str]) -> tuple[list[str], int]:
    states = ["enabled" if name in system.enabled() else "disabled" for name in names]
    return states, int("disabled" in states)


# Each answers with a state for every unit, which need not exist, and the exit code.
_QUESTIONS: dict[str, Callable[[System, list[str]], tuple[list[str], int]]] = {
    "is-active": _is_active,
    "is-failed": _is_failed,
    "is-enabled": _is_enabled,
}


def _states(system: System, names: list[str]) -> list[str]:
    return [system.units[name].state if name in system.units else "inactive" for name in names]


def _when_all(units: list[Unit], callback: Callable[[], None]) -> None:
    left = len(units)

    def settled() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            callback()

    for unit in units:
        unit.when_settled(settled)


def _started(reply: Reply, units: list[Unit]) -> None:
    failed = [unit.spec.name for unit in units if unit.state == "failed"]
    told = "".join(
        f"Job for {name} failed. See 'systemctl status {name}' and 'journalctl -u {name}'.\n"
        for name in failed
    )
    reply.done(err=told, code=int(bool(failed)))


def _describe(system: System, unit: Unit) -> str:
    result = f" (Result: {unit.result})" if unit.state == "failed" else ""
    entries = system.console.journal({unit.spec.name})[-10:]
    stamp = datetime.now(timezone.utc).strftime("%a %Y-%m-%d %H:%M:%S UTC")
    return (
        f"● {unit.spec.name} - {unit.spec.description or unit.spec.name}\n"
        f"     Active: {unit.state}{result} at {stamp}\n"
        f"   Main PID: {unit.pid or '-'}\n"
        f"   Restarts: {unit.restarts}\n\n" + lines(system, entries, "short")
    )
