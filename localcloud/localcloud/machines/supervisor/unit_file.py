"""Settings of service units, as `systemd-run --property` and unit files write them."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "": 1,
    "s": 1,
    "sec": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "d": 86400,
}
_SPAN = re.compile(r"([\d.]+)\s*([a-z]*)\s*")
_RESTART = ("no", "always", "on-success", "on-failure", "on-abnormal", "on-abort")
_TYPES = ("simple", "exec", "oneshot")
_OUTPUTS = {
    "journal": False,
    "inherit": False,
    "journal+console": True,
    "syslog+console": True,
    "kmsg+console": True,
}
_IGNORED = (
    "After",
    "Before",
    "Wants",
    "Requires",
    "WantedBy",
    "Documentation",
    "DefaultDependencies",
)


class UnitError(ValueError):
    """A unit that cannot be run as it is written."""


@dataclass
class UnitSpec:
    """A service unit; names and defaults are systemd's, times are in seconds."""

    name: str
    description: str = ""
    command: list[str] = field(default_factory=list)
    type: str = "simple"
    restart: str = "no"
    restart_sec: float = 0.1
    restart_prevent: frozenset[int] = frozenset()
    success: frozenset[int] = frozenset()
    start_burst: int = 5
    start_interval: float = 10.0
    timeout_stop: float = 90.0
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = ""
    identifier: str = ""
    console: bool = False
    remain: bool = False
    kill_signal: int = signal.SIGTERM
    kill_mode: str = "control-group"
    collect: bool = False
    wanted: bool = False
    """Whether `systemctl enable` finds an [Install] section."""

    def assign(self, name: str, value: str) -> None:
        """Set one property.

        Raises:
            UnitError: for an unknown property or a value that is none.
        """
        if name in _IGNORED:
            self.wanted = self.wanted or name == "WantedBy"
            return
        if name not in _PROPERTIES:
            raise UnitError(f"Unknown assignment: {name}={value} (not one of the local machine's)")
        attribute, parse = _PROPERTIES[name]
        try:
            parsed = parse(value)
        except ValueError as error:
            raise UnitError(f"Failed to parse {name}={value}: {error}") from None
        if attribute == "environment":
            self.environment.update(parsed)
        elif attribute:
            setattr(self, attribute, parsed)


def read(name: str, text: str) -> UnitSpec:
    """Return the unit in a unit file's text.

    Raises:
        UnitError: names the file's line that cannot be taken.
    """
    spec = UnitSpec(name)
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#;[":
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise UnitError(f"{name}:{number}: Missing '=', ignoring line: {line}")
        try:
            spec.assign(key.strip(), value.strip())
        except UnitError as error:
            raise UnitError(f"{name}:{number}: {error}") from None
    if not spec.command:
        raise UnitError(f"{name}: Service has no ExecStart= setting. Refusing.")
    return spec


def seconds(text: str) -> float:
    """Return a time span such as `5`, `500ms`, `2min 20s` or `infinity`."""
    if text.strip() == "infinity":
        return float("inf")
    total, end = 0.0, 0
    for part in _SPAN.finditer(text.strip()):
        if part.start() != end or part.group(2) not in _UNITS:
            break
        total += float(part.group(1)) * _UNITS[part.group(2)]
        end = part.end()
    if end == 0 or end != len(text.strip()):
        raise ValueError("not a time span such as 5, 500ms or 2min 20s")
    return total


def expand(command: list[str], environment: dict[str, str]) -> list[str]:
    """Return `command` with `${NAME}` replaced, `$NAME` split into words and `$$` as `$`."""
    words: list[str] = []
    for word in command:
        whole = re.fullmatch(r"\$(\w+)", word)
        if whole:
            words += environment.get(whole.group(1), "").split()
        else:
            words.append(
                re.sub(
                    r"\$\$|\$\{(\w+)\}",
                    lambda found: environment.get(found[1], "") if found[1] else "$",
                    word,
                )
            )
    return words


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text

    return parse


def _boolean(text: str) -> bool:
    values = {"yes": True, "true": True, "1": True, "on": True}
    values |= {"no": False, "false": False, "0": False, "off": False}
    if text.lower() not in values:
        raise ValueError("neither yes nor no")
    return values[text.lower()]


def _signal(text: str) -> int:
    if text.isdigit():
        return int(text)
    try:
        return int(signal.Signals[text if text.startswith("SIG") else f"SIG{text}"])
    except KeyError:
        raise ValueError("not a signal") from None


def _statuses(text: str) -> frozenset[int]:
    # Exit codes as they are, signals as negative numbers, as subprocess has them.
    return frozenset(int(word) if word.isdigit() else -_signal(word) for word in text.split())


def _environment(text: str) -> dict[str, str]:
    pairs = {}
    for word in shlex.split(text):
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise ValueError(f"{word} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def _environment_file(text: str) -> dict[str, str]:
    path = Path(text.removeprefix("-"))
    if text.startswith("-") and not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(error.strerror) from None
    kept = [line for line in lines if line.strip() and line.strip()[0] not in "#;"]
    return _environment("\n".join(kept))


def _command(text: str) -> list[str]:
    if re.match(r"[-@:+!]", text):
        raise ValueError("prefixes of ExecStart= are not supported by the local machine")
    if re.search(r"%[^%]", text):
        raise ValueError("specifiers (%) are not supported by the local machine")
    return shlex.split(text.replace("%%", "%"))


def _output(text: str) -> bool:
    if text not in _OUTPUTS:
        raise ValueError(f"not one of {', '.join(_OUTPUTS)}")
    return _OUTPUTS[text]


_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Description": ("description", str),
    "ExecStart": ("command", _command),
    "Type": ("type", _one_of(_TYPES)),
    "Restart": ("restart", _one_of(_RESTART)),
    "RestartSec": ("restart_sec", seconds),
    "RestartPreventExitStatus": ("restart_prevent", _statuses),
    "SuccessExitStatus": ("success", _statuses),
    "StartLimitBurst": ("start_burst", int),
    "StartLimitIntervalSec": ("start_interval", seconds),
    "StartLimitInterval": ("start_interval", seconds),
    "TimeoutStopSec": ("timeout_stop", seconds),
    "Environment": ("environment", _environment),
    "EnvironmentFile": ("environment", _environment_file),
    "WorkingDirectory": ("directory", str),
    "SyslogIdentifier": ("identifier", str),
    "StandardOutput": ("console", _output),
    # A local unit writes both streams to one pipe, so errors go where standard output goes.
    "StandardError": ("", _output),
    "RemainAfterExit": ("remain", _boolean),
    "KillSignal": ("kill_signal", _signal),
    "KillMode": ("kill_mode", _one_of(("control-group", "process"))),
    "User": ("", _one_of(("root",))),
    # What is locked here is the host's, whose limits count.
    "LimitMEMLOCK": ("", _one_of(("infinity",))),
}
