"""The stack files: read, checked and migrated, without engine or cloud; what their jobs need."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_core import words
from tpu_infra.catalog import Catalog
from tpu_infra.checks import find_problems, find_warnings, software, with_checks
from tpu_infra.checks.context import Context, nearest, one_of
from tpu_infra.cost import Estimate, of_stack
from tpu_infra.names import names_of
from tpu_infra.settings import StackSettings, base, parse
from tpu_infra.settings.machines import Architecture, RunOn
from tpustack import errors
from tpustack.errors import UsageError
from tpustack.project import locked_provider, root

if TYPE_CHECKING:
    from tpu_training.compile import Answer, Manifest

# What Pulumi allows, for a stack and for a project.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


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
    if not NAME.fullmatch(stack):
        raise UsageError(
            f"stack: {json.dumps(stack, ensure_ascii=False)} is no name of a stack. Use at most "
            "100 letters, digits, hyphens, dots and underscores"
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


def sound(stack: str, catalog: Catalog) -> StackSettings:
    """Return a stack's settings, though the training may not be built yet. Raises UsageError."""
    settings = load(stack)
    found = check(stack, catalog).problems
    errors.refuse([each for each in found if not each.setting.startswith("training.")])
    return settings


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
    context = Context(stack, root(), catalog, names_of(settings, stack))
    locked = locked_provider()
    return replace(context, provider=locked) if locked else context


def shown(path: Path) -> str:
    """Return a path relative to the project's folder."""
    return str(path.relative_to(root()))


def unoffered(name: str, region: str, catalog: Catalog) -> Iterator[base.Problem]:
    """Yield what is wrong with an accelerator in a region, which flags name instead of a stack."""
    types = {**catalog.accelerators, **{key: host.tpu for key, host in catalog.hosts.items()}}
    # A slice is where its machine is.
    name = name.partition(":")[0] if catalog.accelerator(name) else name
    # GPUs have a price in the catalog but no entry, since no stack uses one: for comparison alone.
    if name not in types and name not in catalog.prices.gpus:
        cure = nearest(name, [*types, *catalog.prices.gpus])
        yield base.Problem("--accelerator-type", name, "is not an accelerator of the catalog", cure)
    # A dict, since a set would name the regions in another order each time.
    regions = {
        zone.rpartition("-")[0]: None
        for other in types.values()
        for zone in other.zones
        if name not in types or other.name == name
    }
    if region not in regions:
        why = f"has no {name}" if name in types else "has no TPUs"
        yield base.Problem("--region", region, why, f"Use {one_of(regions)}")


# The same stack on Compute Engine. The checks know what a machine there doesn't have.

# What can be left out: it holds no data and no network of a person's.
_LEFT_OUT = ("vm", "limits.", "recovery.", "tpu.queued.", "tpu.runtime", "tpu.autocheckpoint")


def migrated(stack: str, catalog: Catalog) -> tuple[dict[str, Any], list[str]]:
    """Return a stack's file for architecture compute, and what is different then.

    Raises UsageError with what has no counterpart on Compute Engine.
    """
    settings = sound(stack, catalog)
    name, machine = settings.tpu.accelerator_type, _counterpart(settings, catalog)
    document: dict[str, Any] = parse.load_yaml(path_of(stack).read_text(encoding="utf-8"))
    own, given = f"{parse.NAMESPACE}:", document["config"].items()
    # A setting may lack the program's name in the file.
    config = {key if ":" in key else own + key: value for key, value in given}
    _put(config, f"{own}architecture", str(Architecture.COMPUTE))
    _put(config, f"{own}tpu.acceleratorType", machine)
    _put(config, f"{own}training.runOn", str(RunOn.TPU))
    # A runtime has one of its own, the image of a machine does not.
    tensorflow = software.trainer_tensorflow(settings, context_of(stack, settings, catalog))
    _put(config, f"{own}training.tensorflowVersion", tensorflow)
    left: list[base.Problem] = []
    while True:
        found = _parsed(config, stack, catalog)
        problems = find_problems(*found)
        # Without recovery there is no VM either, whose settings are then left out, too.
        more = [each for each in problems if each.setting.startswith(_LEFT_OUT)]
        if not more:
            break
        left += more
        for problem in more:
            _put(config, own + problem.setting, None)
    # The wheel and the data need not be built yet.
    unbuilt = ("training.wheel", "training.data")
    errors.refuse([each for each in problems if not each.setting.startswith(unbuilt)])
    hours = [of_stack(each, stack, catalog).configured for each in (settings, found[0])]
    before, after = (f"{'' if h.complete else 'over '}{words.money(h.hour, 4)}" for h in hours)
    unit = "V2Vm" if settings.tpu.queue is None else "QueuedResource"
    kind = "InstanceGroupManager" if settings.vm.instance_group else "Instance"
    driver = f" --target '**:{kind}::**'" if settings.has_vm else ""
    return {**document, "config": config}, [
        f"Stack {stack}: {name} of the Cloud TPU API becomes {machine} of Compute Engine.",
        f"Price: {before} an hour becomes {after}.",
        "Quota: Compute Engine counts chips, apart from the Cloud TPU API's quota (users' notes, "
        "not Google's word).",
        *(f"Left out: {each.setting} {each.why}." for each in left),
        *find_warnings(*found),
        "First, let the job end or save a checkpoint. Then delete TPU and VM, so that you don't "
        f"pay for both forms: `pulumi destroy --stack {stack} --target-dependents --target "
        f"'**:{unit}::**'{driver}`. `pulumi up` with this file follows.",
        "The bucket stays, with data, checkpoints and jobs: training resumes from it.",
    ]


def _counterpart(settings: StackSettings, catalog: Catalog) -> str:
    """Return the machine with the chips of a stack's TPU. Raises UsageError if there is none."""
    name = settings.tpu.accelerator_type
    tpu = None if settings.is_compute else catalog.accelerator(name)
    for machine, host in catalog.hosts.items():
        if tpu and (host.tpu.family, host.tpu.chips) == (tpu.family, tpu.chips):
            return machine
    why, cure = "is not a TPU VM that is one machine on Compute Engine", "Keep the architecture"
    raise UsageError(str(base.Problem("tpu.acceleratorType", name, why, cure)))


def _parsed(config: dict[str, Any], stack: str, catalog: Catalog) -> tuple[StackSettings, Context]:
    settings = parse.parse(config, stack)
    return settings, context_of(stack, settings, catalog)


def _put(group: dict[str, Any], path: str, value: object) -> None:
    """Set a setting by its dotted name, or remove it; a group that is empty then goes, too."""
    name, _, rest = path.partition(".")
    if rest:
        inside = dict(group.get(name) or {})
        _put(inside, rest, value)
        value = inside or None
    group[name] = value
    if value is None:
        del group[name]


# What Google's TPU compiler said of a stack's job. It is only looked up: to compile takes minutes.


def tpu_type(settings: StackSettings) -> str:
    """Return the name of the stack's TPU, or of one slice, for the compiler and for prices."""
    name, topology = settings.tpu.accelerator_type, settings.tpu.topology
    host = Catalog().hosts.get(name) if topology else None
    return f"{name}:{topology}" if host and topology in host.slices else name


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
    return manifest, cached_job(tpu_type(settings), settings.training.args, manifest)


def asking(settings: StackSettings) -> str:
    """Return the command that asks the compiler."""
    from tpu_training.compile.answer import tpus

    name = tpu_type(settings)
    backend = [] if name not in tpus() or tpus()[name].tensorflow else ["--backend=jax"]
    data = f"--data={settings.training.data or 'DIR'}"
    job = shlex.join([*settings.training.args, data, *backend])
    return f"tpu-training compile --tpu={name} {job}"


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
