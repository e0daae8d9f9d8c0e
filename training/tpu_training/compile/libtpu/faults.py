"""What can go wrong with the compiler, as errors that say what to do."""

import re
import signal
from typing import Any

from tpu_training.compile.libtpu.install import Libtpu
from tpu_training.compile.result import Program, Topology
from tpu_training.errors import InputError, TrainingError

# How Google's programs begin the line that says why they end.
_FATAL = re.compile(r"^F\d{4} .*?\] (.*)$|^(.*Check failed: .*)$", re.M)
_OLD = re.compile(r"unique_id_? < INT32_MAX")
_LONGEST = 600


def crashed(libtpu: Libtpu, program: Program, code: int, log: str) -> TrainingError:
    """Return the error for a child that ended by itself with `code`, negative for a signal."""
    said = _reason(log)
    if _OLD.search(log):
        return InputError(
            f"{libtpu.name} is older than the framework that wrote the program and can't read "
            f"it: pip install --upgrade libtpu (Python 3.10 gets none newer than 0.0.21: use 3.11 "
            f"or later) [{said}]"
        )
    if code == -signal.SIGKILL:
        return TrainingError(
            f"the compiler was killed (SIGKILL) while it compiled {program.name!r}, as systems do "
            "when memory runs out: ResNet-50 and BERT-base take up to 4 GB with code generation "
            "and 0.5 GB without; free some, or compile on a larger machine"
        )
    ending = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return TrainingError(
        f"{libtpu.name} crashed on {program.name!r}: it ended {ending}"
        + (f" [{said}]" if said else " without a word")
        + "; try another version: pip install libtpu==VERSION"
    )


def timed_out(program: Program, seconds: float) -> TrainingError:
    """Return the error for a child that took too long."""
    return TrainingError(
        f"the compiler was stopped: {program.name!r} took longer than {seconds:.0f} s; try a "
        "smaller program, or a machine with less other work"
    )


def refused(answer: dict[str, Any], program: Program, topology: Topology) -> TrainingError:
    """Return the error for an answer that is no compiled program."""
    if words := answer.get("topology_error"):
        return InputError(
            f"libtpu knows no TPU {topology.accelerator_type} ({topology.name}): {_short(words)}"
        )
    if (devices := answer.get("too_few_devices")) is not None:
        return InputError(
            f"{program.name!r} is for {program.replicas * program.partitions} cores "
            f"(replicas={program.replicas}, partitions={program.partitions}), but "
            f"{topology.accelerator_type} has {devices}: choose a larger TPU or fewer replicas"
        )
    return InputError(
        f"the TPU compiler refuses {program.name!r} for {topology.accelerator_type}: "
        f"{_short(answer['error'])}"
    )


def unreadable(libtpu: Libtpu, error: Exception) -> TrainingError:
    """Return the error for a dump that is not as this package knows it."""
    return TrainingError(
        f"the report of {libtpu.name} can't be read ({error}): this package knows those of 0.0.21 "
        "and 0.0.52; pip install libtpu==0.0.52"
    )


def no_limit(libtpu: Libtpu, topology: Topology) -> TrainingError:
    """Return the error for a libtpu that says nowhere how much memory a core has."""
    return InputError(
        f"{libtpu.name} does not say how much memory a core of {topology.accelerator_type} has: "
        "pip install --upgrade libtpu"
    )


def _reason(log: str) -> str:
    """Return the line of a log that says why a process ended."""
    for match in _FATAL.finditer(log):
        return _short(match[1] or match[2])
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return _short(lines[-1]) if lines else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
