"""The stack files of the project, read and checked without engine or cloud."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.catalog import Catalog
from infra.checks import find_problems, find_warnings, with_checks
from infra.checks.context import Context
from infra.names import names_of
from infra.settings import StackSettings
from infra.settings.base import UNSET, Problem, SettingsError
from infra.settings.parse import load_stack_file, stack_name, stack_path
from tpustack.errors import UsageError
from tpustack.project import root
from tpustack.stacks.compiled import answer_of, manifest_of

# What Pulumi allows.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True)
class Report:
    """The problems of one stack file, and its warnings."""

    stack: str
    file: str
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs; a value that is not set is null."""
        return {
            "stack": self.stack,
            "file": self.file,
            "problems": [
                {
                    "setting": problem.setting,
                    "value": None if problem.value is UNSET else problem.value,
                    "why": problem.why,
                    "cure": problem.cure,
                }
                for problem in self.problems
            ],
            "warnings": list(self.warnings),
        }


def path_of(stack: str) -> Path:
    """Return the path of a stack's file. Raises UsageError for an impossible name."""
    if not _NAME.fullmatch(stack):
        raise UsageError(
            f"{json.dumps(stack, ensure_ascii=False)} is no name of a stack (at most 100 letters, "
            "digits, hyphens, dots and underscores)"
        )
    return stack_path(root(), stack)


def all_stacks() -> list[str]:
    """Return the stacks that have a file. Raises UsageError if there is none."""
    found = sorted(stack_name(path) for path in (root() / "stacks").glob("Pulumi.*.yaml"))
    if not found:
        raise UsageError(f"{root() / 'stacks'} has no stack files. Make one with `tpustack init`")
    return found


def load(stack: str) -> StackSettings:
    """Return a stack's settings. Raises UsageError with every problem of their form."""
    try:
        return load_stack_file(path_of(stack))
    except SettingsError as error:
        raise UsageError(str(error)) from None


def require_file(stack: str) -> None:
    """Raise UsageError if no file makes `stack` a stack."""
    if not (path := path_of(stack)).exists():
        raise UsageError(f"--stack: there is no stack {stack}: {shown(path)} does not exist")


def check(stack: str, catalog: Catalog) -> Report:
    """Find everything that `pulumi up` would refuse, as far as files and catalog can tell."""
    path = path_of(stack)
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        settings = load_stack_file(path)
    except SettingsError as error:
        whole = with_checks(error, lambda rest: context_of(stack, rest, catalog))
        problems = whole.problems
    else:
        context = context_of(stack, settings, catalog)
        problems = tuple(find_problems(settings, context))
        warnings = () if problems else (*find_warnings(settings, context), *_misfit(settings))
    return Report(stack, shown(path), problems, warnings)


def _misfit(settings: StackSettings) -> Iterator[str]:
    """Yield that the job is known not to fit into the TPU."""
    answer = answer_of(settings, manifest_of(settings, root()))
    if answer is not None:
        from tpu_training.compile import misfit

        if why := misfit(answer):
            yield f"training.args: {why}"


def context_of(stack: str, settings: StackSettings, catalog: Catalog) -> Context:
    """Return what the checks look at beside the settings."""
    return Context(stack, root(), catalog, names_of(settings, stack))


def shown(path: Path) -> str:
    """Return a path relative to the project's folder."""
    return str(path.relative_to(root()))
