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
    parsed = parser.parse_args(arguments)
    if parsed.verb in ("poweroff", "halt", "reboot"):
        power.ask(system, reply, "reboot" if parsed.verb == "reboot" else "poweroff")
        return
    if parsed.verb == "daemon-reload":
        system.reload()
        reply.done()
        return
    if parsed.verb not in _VERBS:
        raise UnitError(f"Unknown command verb {parsed.verb}. (the local machine's systemctl)")
    if parsed.verb == "reset-failed" and not parsed.units:
        parsed.units = list(system.units)
    if not parsed.units:
        raise UnitError("Too few arguments.")
    _VERBS[parsed.verb](system, reply, [full_name(name) for name in parsed.units], parsed.now)


def _start(system: System, reply: Reply, names: list[str], now: bool) -> None:
    units = _loaded(system, reply, names)
    for unit in units or []:
        unit.start()
    if units is not None:
        _when_all(units, lambda: _started(reply, units))


def _stop(system: System, reply: Reply, names: list[str], now: bool) -> None:
    units = _loaded(system, reply, names)
    for unit in units or []:
        unit.stop()
    if units is not None:
        _when_all(units, reply.done)


def _restart(system: System, reply: Reply, names: list[str], now: bool) -> None:
    units = _loaded(system, reply, names)
    if units is None:
        return

    def begin() -> None:
        for unit in units:
            unit.start()
        _when_all(units, lambda: _started(reply, units))

    for unit in units:
        unit.stop()
    _when_all(units, begin)


def _status(system: System, reply: Reply, names: list[str], now: bool) -> None:
    units = _loaded(system, reply, names, code=_UNKNOWN)
    if units is None:
        return
    told = "\n".join(_describe(system, unit) for unit in units)
    up = all(unit.state in ("active", "activating") for unit in units)
    reply.done(told, code=0 if up else _NOT_RUNNING)


def _is_active(system: System, reply: Reply, names: list[str], now: bool) -> None:
    states = [system.units[name].state if name in system.units else "inactive" for name in names]
    code = 0 if "active" in states else _NOT_RUNNING
    reply.done("".join(f"{state}\n" for state in states), code=code)


def _is_failed(system: System, reply: Reply, names: list[str], now: bool) -> None:
    states = [system.units[name].state if name in system.units else "inactive" for name in names]
    code = 0 if "failed" in states else 1
    reply.done("".join(f"{state}\n" for state in states), code=code)


def _reset(system: System, reply: Reply, names: list[str], now: bool) -> None:
    for unit in _loaded(system, reply, names) or []:
        unit.reset()
    if all(name in system.units for name in names):
        reply.done()


def _enable(system: System, reply: Reply, names: list[str], now: bool) -> None:
    units = _loaded(system, reply, names)
    if units is None:
        return
    for unit in units:
        if not unit.spec.wanted:
            raise UnitError(f"The unit {unit.spec.name} has no [Install] section to enable it by.")
        system.enable(unit.spec.name, on=True)
        if now:
            unit.start()
    reply.done()


def _disable(system: System, reply: Reply, names: list[str], now: bool) -> None:
    for unit in _loaded(system, reply, names) or []:
        system.enable(unit.spec.name, on=False)
        if now:
            unit.stop()
    if all(name in system.units for name in names):
        reply.done()


def _is_enabled(system: System, reply: Reply, names: list[str], now: bool) -> None:
    states = ["enabled" if name in system.enabled() else "disabled" for name in names]
    code = int("disabled" in states)
    reply.done("".join(f"{state}\n" for state in states), code=code)


_VERBS: dict[str, Callable[[System, Reply, list[str], bool], None]] = {
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "status": _status,
    "is-active": _is_active,
    "is-failed": _is_failed,
    "reset-failed": _reset,
    "enable": _enable,
    "disable": _disable,
    "is-enabled": _is_enabled,
}


def _loaded(
    system: System, reply: Reply, names: list[str], code: int = _NO_SUCH_UNIT
) -> list[Unit] | None:
    """Return the units, or None after the answer that one of them is missing."""
    try:
        return [system.find(name) for name in names]
    except UnitError as error:
        reply.fail(str(error), code)
        return None


def _when_all(units: list[Unit], callback: Callable[[], None]) -> None:
    left = len(units)

    def settled() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            callback()

    for unit in list(units):
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
