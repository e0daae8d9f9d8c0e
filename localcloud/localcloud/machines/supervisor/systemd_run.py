"""`systemd-run`: a command as a transient service, at once or at the first connection."""

from __future__ import annotations

import os
import shutil
import uuid

from localcloud.machines.supervisor.reply import Arguments, Reply
from localcloud.machines.supervisor.sockets import port_of
from localcloud.machines.supervisor.system import System, full_name
from localcloud.machines.supervisor.unit import Unit
from localcloud.machines.supervisor.unit_file import UnitError, UnitSpec


def run(system: System, reply: Reply, arguments: list[str]) -> None:
    """Start the service; answer when it has started, or with --wait when it has ended."""
    parsed = _parser().parse_args(arguments)
    if not parsed.command:
        raise UnitError("Command line to execute required.")
    unit_name = full_name(parsed.unit or f"run-{uuid.uuid4().hex[:12]}")
    if unit_name in system.units and not _forgotten(system.units[unit_name]):
        raise UnitError(
            f"Failed to start transient service unit: Unit {unit_name} was already loaded or has "
            "a fragment file."
        )
    executable = shutil.which(parsed.command[0], path=reply.path)
    if executable is None:
        raise UnitError(f"Failed to find executable {parsed.command[0]}: No such file or directory")
    spec = UnitSpec(unit_name, command=[os.path.abspath(executable), *parsed.command[1:]])
    spec.description = parsed.description or " ".join(spec.command)
    for assignment in parsed.property:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise UnitError(f"Not an assignment: {assignment}")
        spec.assign(name, value)
    for pair in parsed.setenv:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UnitError(f"--setenv={pair}: NAME=VALUE is needed by the local machine")
        spec.environment[name] = value
    for option, name in (("service_type", "Type"), ("working_directory", "WorkingDirectory")):
        if getattr(parsed, option):
            spec.assign(name, getattr(parsed, option))
    if parsed.same_dir:
        spec.directory = reply.cwd
    spec.remain = spec.remain or parsed.remain_after_exit
    spec.collect = parsed.collect
    listening = [port_of(assignment) for assignment in parsed.socket_property]
    unit = system.add(spec)
    if listening:
        system.listen(listening[0], unit)
        socket_name = f"{unit_name.removesuffix('.service')}.socket"
        reply.done(err=f"Running socket as unit: {socket_name}\n")
        return
    unit.start()
    said = "" if parsed.quiet else f"Running as unit: {unit_name}\n"
    if parsed.wait:
        unit.when_settled(lambda: reply.done(err=said, code=_code(unit)), ended=True)
    elif spec.type == "oneshot" and not parsed.no_block:
        unit.when_settled(lambda: reply.done(err=said, code=int(unit.state == "failed")))
    else:
        reply.done(err=said, code=int(unit.state == "failed"))


def _code(unit: Unit) -> int:
    # A shell's way to say that a signal ended it, as systemd-run has no number of its own.
    code = unit.code or 0
    return code if code >= 0 else 128 - code


def _forgotten(unit: Unit) -> bool:
    if unit.listener is not None:
        return False
    # A transient unit is unloaded once it has ended; a failed one only with --collect.
    return unit.state == "inactive" or (unit.state == "failed" and unit.spec.collect)


def _parser() -> Arguments:
    parser = Arguments("systemd-run")
    parser.add_argument("--unit", "-u", default="")
    parser.add_argument("--property", "-p", action="append", default=[])
    parser.add_argument("--socket-property", action="append", default=[])
    parser.add_argument("--setenv", "-E", action="append", default=[])
    parser.add_argument("--description", default="")
    parser.add_argument("--service-type", default="")
    parser.add_argument("--working-directory", default="")
    for flag in ("--same-dir -d", "--remain-after-exit -r", "--collect -G", "--quiet -q"):
        parser.add_argument(*flag.split(), action="store_true")
    for flag in ("--wait", "--no-block", "--system"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("command", nargs="...")
    return parser
