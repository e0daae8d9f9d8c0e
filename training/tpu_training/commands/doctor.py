"""`tpu-training doctor env`: say what a job would train on here, and why.

Connects only to the TPU's port and the Cloud TPU API, asks once, and loads no TensorFlow.
"""

import argparse
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tpu_training.cluster.cloud_tpu import choose_local, resolve
from tpu_training.cluster.endpoint import (
    VARIABLES,
    Addresses,
    LocalTpu,
    NamedTpu,
    NoTpu,
    Target,
    Wait,
    Workers,
    find_target,
    why_silent,
)
from tpu_training.cluster.machine import (
    Machine,
    check_library,
    find_machine,
)
from tpu_training.commands.arguments import Command, add_command
from tpu_training.errors import EXIT_FAILURE, TrainingError
from tpu_training.errors.catalog import NO_TENSORFLOW, find_known_error

_ASK_ONCE = Wait(tries=1, interval=0.0)


def add(modes: Any) -> None:
    """Add the parser."""
    doctor = modes.add_parser("doctor", help="examine the environment", allow_abbrev=False)
    subjects = doctor.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    env = add_command(
        subjects,
        "env",
        _build,
        help="what a job would train on here, and why",
        description="Report what a job would train on here, and why. Exit code 1: a job could not "
        "start.",
    )
    for flag in ("--tpu", "--tpu-project", "--tpu-zone"):
        env.add_argument(flag, help="as for train")
    env.add_argument("--json", action="store_true", help="print the same as JSON")


def _build(known: argparse.Namespace) -> Command:
    return partial(_examine, known.tpu, known.tpu_project, known.tpu_zone, known.json)


def _examine(tpu: str | None, project: str | None, zone: str | None, as_json: bool) -> int:

    # The one report says it all, and with --json it has to stand alone.
    logging.getLogger("tpu_training").setLevel(logging.ERROR)
    found = examine(tpu, project, zone, os.environ)
    print(json.dumps(found.as_json(), indent=2) if as_json else found, flush=True)
    return EXIT_FAILURE if found.problems else 0


@dataclass(frozen=True)
class Setting:
    """A setting that can name a TPU. `state` is `taken`, `passed over` or `not set`."""

    name: str
    value: str
    state: str


@dataclass(frozen=True)
class Environment:
    """The findings. `workers` maps an address to why the worker is silent, None if it answers."""

    machine: Machine
    settings: tuple[Setting, ...]
    choice: str
    reason: str
    workers: Mapping[str, str | None]
    problems: tuple[str, ...]
    hints: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the findings for programs."""
        return dataclasses.asdict(self) | {"ok": not self.problems}

    def __str__(self) -> str:
        lines = [f"this machine: {self.machine}", f"tensorflow: {self._tensorflow()}"]
        lines += ["settings that can name a TPU, the first one wins:"]
        lines += [
            f"  {s.name:<33}{s.state}{f': {s.value}' if s.value else ''}" for s in self.settings
        ]
        lines += [f"a job would train on: {self.choice}", f"because: {self.reason}"]
        lines += [f"worker grpc://{w}: {why or 'answers'}" for w, why in self.workers.items()]
        lines += [f"hint: {hint}" for hint in self.hints]
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _tensorflow(self) -> str:
        found = " ".join(f"{name} {version}" for name, version in self.machine.libraries.items())
        return found or "not installed"


def examine(
    tpu: str | None,
    project: str | None,
    zone: str | None,
    environ: Mapping[str, str],
    machine: Machine | None = None,
    probe: Callable[[str], str | None] = why_silent,
    look_up: Callable[[Target, Wait], Workers] = resolve,
) -> Environment:
    """Find out what a job started here with these arguments would train on.

    Wrong values, a missing TPU and silent workers become `problems` of the result. Tests replace
    `machine`, `probe` and `look_up`.
    """
    machine = machine or find_machine()
    problems: list[str] = []
    target: Target = NoTpu()
    workers: Workers | None = None
    try:
        target = find_target(tpu, project, zone, environ)
        workers = choose_local(look_up(target, _ASK_ONCE), machine, split_cpu=False)
        if isinstance(workers, LocalTpu):
            check_library(environ)
    except TrainingError as error:
        problems.append(str(error))
    answers = {a: probe(a) for a in workers.addresses} if isinstance(workers, Addresses) else {}
    problems += [f"grpc://{worker}: {why}" for worker, why in answers.items() if why]
    if machine.tensorflow is None:
        problems.append(f"TensorFlow is not installed: {_install_tensorflow()}")
    choice, reason = _choice(workers, target, machine)
    return Environment(
        machine=machine,
        settings=_settings(tpu, environ),
        choice=choice,
        reason=reason,
        workers=answers,
        problems=tuple(problems),
        hints=tuple(_hints(target, machine, environ)),
    )


def _install_tensorflow() -> str:
    known = find_known_error(NO_TENSORFLOW)
    assert known
    return known.cure


def _settings(tpu: str | None, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    given = {"--tpu": tpu or "", **{name: environ.get(name, "") for name in VARIABLES}}
    first = next((name for name, value in given.items() if value), None)
    settings = []
    for name, value in given.items():
        state = "taken" if name == first else f"passed over for {first}" if value else "not set"
        settings.append(Setting(name, value, state))
    return tuple(settings)


def _choice(workers: Workers | None, target: Target, machine: Machine) -> tuple[str, str]:
    """Describe the expected strategy and the reason for it, without connecting."""
    if workers is None:
        return "nothing: see the problem", "the setting that names the TPU can't be used as it is"
    if isinstance(workers, Addresses):
        looked_up = (
            " and the Cloud TPU API gave its address" if isinstance(target, NamedTpu) else ""
        )
        count = len(workers.addresses)
        return (
            f"the TPU at {workers.url} ({count} worker{'s' if count > 1 else ''}) by TPUStrategy; "
            "by MirroredStrategy if the worker turns out to have no TPU",
            f"{workers.source} names it{looked_up}",
        )
    if isinstance(workers, LocalTpu):
        return "this machine's TPU by TPUStrategy", workers.reason
    if machine.gpus:
        plural = "s" if machine.gpus > 1 else ""
        return f"{machine.gpus} GPU{plural} by MirroredStrategy", "no setting names a TPU"
    return "this machine's CPU by MirroredStrategy", "no setting names a TPU and there is no GPU"


def _hints(target: Target, machine: Machine, environ: Mapping[str, str]) -> list[str]:
    hints = []
    if isinstance(target, NoTpu) and machine.tpu_chips and not machine.has_libtpu:
        hints.append(
            "this machine has TPU chips, but no libtpu that drives them: pip install "
            "tensorflow-tpu of the version that you train with, or take a TensorFlow runtime"
        )
    if len(environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1 and isinstance(target, NoTpu):
        hints.append(
            "this is one host of a slice (TPU_WORKER_HOSTNAMES): name all workers with "
            "--tpu=grpc://HOST:8470,… in their order, or the slice with --tpu=NAME"
        )
    return hints
