"""The settings file of a new stack: a few answers, checked before anything is written."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.catalog import Catalog
from infra.checks import find_problems
from infra.checks.project import LONGEST_PREFIX
from infra.settings import StackSettings
from infra.settings.base import Problem, SettingsError
from infra.settings.machines import Capacity, RunOn
from infra.settings.parse import PROJECT_KEY, parse
from tpustack.errors import UsageError
from tpustack.stacks import files as stacks

_PREFIX = "namePrefix"
_NAME = "NAME"
# Problems that no answer causes: files that are built later, and the runtime, which is chosen here
# and missing only where the type is unknown.
_BUILT_LATER = "training."
_DATA = "training.data"
_OURS = ("tpu.runtimeVersion",)


# A stack of one person's: it ends by itself, and leaves nothing when it is destroyed.
_OF_A_PERSON: Mapping[str, Any] = {
    "tpu-stack:limits": {"timeToLiveHours": 12, "idleMinutes": 30},
    "tpu-stack:bucket": {"forceDestroy": True, "softDeleteDays": 0},
}
_HEADING = """# Made by `tpustack init`. Every setting is described in docs/settings.md.
# limits: the TPU is deleted after so many hours, and stopped or deleted when nothing trains on it.
# bucket.forceDestroy: `pulumi destroy` deletes the bucket with all results. Remove it to keep them.
# bucket.softDeleteDays: 0, since Google bills what it keeps of deleted and replaced objects.
"""


@dataclass(frozen=True)
class Answers:
    """The settings that only the user can know; a stack of the team has no owner."""

    project: str
    zone: str
    accelerator_type: str
    capacity: str
    data: str = ""
    owner: str = ""
    run_on: str = str(RunOn.VM)

    def config(self, catalog: Catalog) -> dict[str, Any]:
        """Return the stack file's configuration."""
        tpu = {"acceleratorType": self.accelerator_type}
        if runtime := runtime_for(self.accelerator_type, catalog, self.run_on):
            tpu["runtimeVersion"] = runtime
        training = {"data": self.data} if self.data else {}
        if self.run_on != RunOn.VM:
            training["runOn"] = self.run_on
        return {
            PROJECT_KEY: self.project,
            **({"tpu-stack:owner": self.owner} if self.owner else {}),
            "tpu-stack:zone": self.zone,
            "tpu-stack:tpu": {**tpu, "capacity": self.capacity},
            **({"tpu-stack:training": training} if training else {}),
            **_OF_A_PERSON,
        }


_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "project": (PROJECT_KEY,),
    "zone": ("zone",),
    # A zone that lacks the type is reported as the zone's problem.
    "accelerator_type": ("tpu.acceleratorType", "zone"),
    "capacity": ("tpu.capacity",),
    "data": (_DATA,),
    "owner": ("owner",),
    "run_on": ("training.runOn",),
}
REQUIRED = ("project", "zone", "accelerator_type", "capacity")
"""The answers that every stack needs."""


def owner_of(stack: str) -> str:
    """Return who is logged in, as far as it fits into the stack's names.

    Empty if nobody knows, or if the stack's own name says it.
    """
    try:
        person = re.sub(r"[^a-z0-9]+", "-", getpass.getuser().lower())
    except (KeyError, OSError):
        return ""
    if f"-{stack}".endswith(f"-{person.strip('-')}"):
        return ""
    room = LONGEST_PREFIX - len(f"tpu-stack-{stack}-")
    return person.strip("-")[: max(room, 1)].strip("-")


def runtime_for(accelerator_type: str, catalog: Catalog, run_on: str = RunOn.VM) -> str | None:
    """Return the first runtime with TensorFlow that fits; None for an unknown type.

    A trainer that drives the TPU of its own host needs no gRPC, all others do.
    """
    tpu = catalog.accelerators.get(accelerator_type)
    fitting = (
        runtime.name
        for runtime in catalog.runtimes.values()
        if tpu and runtime.tensorflow and tpu.family in runtime.families
        if runtime.serves_grpc == (run_on == RunOn.VM or tpu.hosts > 1)
    )
    return next(fitting, None)


def zones_for(accelerator_type: str | None, catalog: Catalog) -> list[str]:
    """Return the zones that have TPUs, or those that have one type."""
    types = catalog.accelerators.values()
    return sorted(
        {zone for tpu in types if accelerator_type in (None, tpu.name) for zone in tpu.zones}
    )


def types_in(zone: str, catalog: Catalog) -> list[str]:
    """Return the types of TPU in a zone, smallest first within a family."""
    return [tpu.name for tpu in catalog.accelerators.values() if zone in tpu.zones]


def problems_of(stack: str, answers: Answers, catalog: Catalog) -> list[Problem]:
    """Return every problem with the answers."""
    try:
        settings = parse(answers.config(catalog), stack)
    except SettingsError as error:
        return list(error.problems)
    found = find_problems(settings, stacks.context_of(stack, settings, catalog))
    if wrong := [problem for problem in found if problem.setting == _PREFIX]:
        why = wrong[0].why.removeprefix("and ")
        cure = "Use a short one of lower-case letters, digits and hyphens"
        return [Problem(_NAME, stack, f"is no good beginning of names: it {why}", cure)]
    return [
        problem
        for problem in found
        if problem.setting == _DATA or not problem.setting.startswith((*_OURS, _BUILT_LATER))
    ]


def problem_of(stack: str, name: str, known: Mapping[str, str]) -> Problem | None:
    """Return the first problem with the answer `name`, given the answers so far."""
    found = problems_of(stack, _completed(known), Catalog())
    about = (p for setting in _SETTINGS[name] for p in found if p.setting == setting)
    return next(about, None)


def _completed(known: Mapping[str, str]) -> Answers:
    """Fill in valid answers where there are none yet."""
    catalog = Catalog()
    zones = zones_for(known.get("accelerator_type"), catalog) or zones_for(None, catalog)
    zone = known.get("zone", zones[0])
    types = types_in(zone, catalog) or list(catalog.accelerators)
    usual = {
        "project": "some-project",
        "zone": zone,
        "accelerator_type": types[0],
        "capacity": str(Capacity.ON_DEMAND),
    }
    return Answers(**{**usual, **known})


def path_for(stack: str) -> Path:
    """Return the path to write to. Raises UsageError if the stack has a file or cannot have one."""
    path = stacks.path_of(stack)
    if path.exists():
        raise UsageError(f"{stacks.shown(path)} is there already. Choose another name, or edit it")
    wrong = [p for p in problems_of(stack, _completed({}), Catalog()) if p.setting == _NAME]
    if wrong:
        raise UsageError(str(wrong[0]))
    return path


def write(stack: str, answers: Answers, catalog: Catalog) -> StackSettings:
    """Write the file. Raises UsageError, and writes nothing, if anything is wrong."""
    path = path_for(stack)
    if problems := problems_of(stack, answers, catalog):
        raise UsageError("\n".join(str(problem) for problem in problems))
    config = answers.config(catalog)
    text = yaml.safe_dump({"config": config}, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(exist_ok=True)
    # "x" refuses to overwrite a file that appeared meanwhile.
    with path.open("x", encoding="utf-8") as file:
        file.write(_HEADING + text)
    return parse(config, stack)
