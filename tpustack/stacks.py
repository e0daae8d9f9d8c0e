"""The stack files: read and checked without engine or cloud; what their jobs are known to need."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.catalog import Catalog
from infra.checks import find_problems, find_warnings, software, with_checks
from infra.checks.context import Context
from infra.cost import Estimate
from infra.names import names_of
from infra.settings import StackSettings, base, parse
from tpu_core import words
from tpustack.errors import UsageError
from tpustack.project import root

if TYPE_CHECKING:
    from tpu_training.compile import Answer, Manifest

# What Pulumi allows.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@dataclass(frozen=True)
class Report:
    """The problems of one stack file, and its warnings.

    Warnings are of what is allowed and may surprise; there are none as long as there are problems.
    """

    stack: str
    file: str
    problems: tuple[base.Problem, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs; a value that is not set is null."""
        return {
            "stack": self.stack,
            "file": self.file,
            "problems": [
                vars(problem) | ({"value": None} if problem.value is base.UNSET else {})
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
    return parse.stack_path(root(), stack)


def all_stacks() -> list[str]:
    """Return the stacks that have a file. Raises UsageError if there is none."""
    found = sorted(parse.stack_name(path) for path in (root() / "stacks").glob("Pulumi.*.yaml"))
    if not found:
        raise UsageError(f"{root() / 'stacks'} has no stack files. Make one with `tpustack init`")
    return found


def load(stack: str) -> StackSettings:
    """Return a stack's settings. Raises UsageError with every problem of their form."""
    path = path_of(stack)
    try:
        return parse.load_stack_file(path)
    except base.SettingsError as error:
        # A file that doesn't exist has no settings with problems.
        raise UsageError(str(error if path.exists() else error.problems[0])) from None


def require_file(stack: str) -> None:
    """Raise UsageError if no file makes `stack` a stack."""
    if not path_of(stack).exists():
        load(stack)


def check(stack: str, catalog: Catalog) -> Report:
    """Find everything that `pulumi up` would refuse, as far as files and catalog can tell.

    A file whose form is wrong is checked, too, as far as it could be read: one look should name
    every problem.
    """
    path = path_of(stack)
    problems: tuple[base.Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        settings = parse.load_stack_file(path)
    except base.SettingsError as error:
        whole = with_checks(error, lambda rest: context_of(stack, rest, catalog))
        problems = whole.problems
    else:
        context = context_of(stack, settings, catalog)
        problems = tuple(find_problems(settings, context))
        warnings = () if problems else (*find_warnings(settings, context), *_misfit(settings))
    return Report(stack, shown(path), problems, warnings)


def _misfit(settings: StackSettings) -> Iterator[str]:
    """Yield that the job is known not to fit into one slice of its TPU."""
    if answer := answer_of(settings)[1]:
        from tpu_training.compile import misfit

        if why := misfit(answer):
            yield f"training.args: {why}"


def context_of(stack: str, settings: StackSettings, catalog: Catalog) -> Context:
    """Return what the checks look at besides the settings."""
    return Context(stack, root(), catalog, names_of(settings, stack))


def shown(path: Path) -> str:
    """Return a path relative to the project's folder."""
    return str(path.relative_to(root()))


# What Google's TPU compiler said of a stack's job. It is only looked up: to compile takes minutes.


def answer_of(settings: StackSettings) -> tuple["Manifest | None", "Answer | None"]:
    """Return the stack's data and what the compiler said of its job on one slice, as far as known.

    Nothing is known of data that is not on this machine, nor if `tpu-training compile` was not
    asked here for these arguments, this data and this TPU type.
    """
    folder = root() / (settings.training.data or "")
    if settings.training.data is None or not (folder / software.MANIFEST).is_file():
        return None, None
    # It takes a while to load, for which only those who have data should wait.
    from tpu_training.compile import cached_job, read_manifest
    from tpu_training.errors import TrainingError

    try:
        manifest = read_manifest(str(folder))
    except TrainingError:
        return None, None
    tpu = settings.tpu.accelerator_type
    return manifest, cached_job(tpu, settings.training.args, manifest)


def asking(settings: StackSettings) -> str:
    """Return the command that asks the compiler."""
    job = shlex.join([*settings.training.args, f"--data={settings.training.data or 'DIR'}"])
    return f"tpu-training compile --tpu={settings.tpu.accelerator_type} {job}"


def epoch_cost(settings: StackSettings, estimate: Estimate) -> tuple[dict[str, Any] | None, str]:
    """Return what an epoch costs at least, for programs and for people; nothing is compiled.

    The time is a lower bound, by what the compiler counted and what the chip does at best; the
    dollars are those of the whole stack in that time.
    """
    manifest, answer = answer_of(settings)
    # Several slices share each step, which is compiled for one.
    if manifest is None or settings.tpu.slices > 1:
        return None, ""
    if answer is None or answer.train.costs is None:
        command = asking(settings)
        return None, f"What an epoch costs at least is unknown: `{command}` finds it out."
    from tpu_training.compile.answer import bound, epoch

    least = bound(answer.train.costs, answer.facts)
    examples = manifest.split("train").examples
    seconds = epoch(least, answer.global_batch_size, examples, answer.facts).seconds
    amount = estimate.configured.hour * Decimal(seconds) / 3600
    found = {"kind": "bound", "examples": examples, "seconds": seconds, "dollars": f"{amount:f}"}
    price = words.money(amount)
    # Below a cent it bounds nothing.
    costs = "" if price.startswith("<") else f" and costs at least {price}"
    return found, (
        f"An epoch of {examples:,} examples takes at least {words.duration(seconds)}{costs} (bound "
        f"by {least.limit}, compiled by {answer.train.compiler}, not measured; start, input and "
        "evaluation come on top)."
    )
