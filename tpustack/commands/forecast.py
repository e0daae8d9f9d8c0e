"""`tpustack forecast`: what a training costs and when it ends, preemptions included.

A run is added up in virtual time, from the seconds of its steps and the TPUs that it loses. A test
compares it with the month of bench/, which runs the agent's real code against the same losses.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import repeat
from typing import Any, NamedTuple, TextIO

import click

from tpu_core.words import duration, money, plural
from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import Price
from tpu_infra.cost import UNKNOWN, Total, aligned, of_stack, wrapped
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import Problem
from tpu_infra.settings.machines import Capacity
from tpustack import console, errors, stacks
from tpustack.engine import named
from tpustack.errors import UsageError

# --- One run: its seconds with and without a TPU

# The rhythm of a table that SkyPilot published for spot TPUs, taken over from notes: a preemption
# in about 16 hours, 9.8 minutes from one job to the next. Its own deletion and half a poll are no
# part of the cloud's time to create. The trainer assumes the same rhythm (loop/train.py).
LIFE_HOURS = 16.0
DELETE_SECONDS = 45.0
CREATE_SECONDS = 9.8 * 60 - DELETE_SECONDS - 7.5
# From READY to the first step: the trainer asks each 10 s, loads TensorFlow, restores, compiles.
START_SECONDS = 35.0
# A save keeps the steps waiting for so long.
SAVE_SECONDS = 0.5
# Between two checkpoints, as the trainer spaces them: Young's formula (loop/train.py).
_SAVED_SECONDS = (2 * SAVE_SECONDS * LIFE_HOURS * 3600) ** 0.5
_AWAY_SECONDS = DELETE_SECONDS + CREATE_SECONDS
# Flex-start ends after 7 days at most: docs.cloud.google.com/tpu/docs/request-using-flex-start.
_FLEX_SECONDS = 7 * 24 * 3600.0


class Run(NamedTuple):
    """How one run goes: seconds with a TPU, which are billed, and without; how many it lost."""

    ready: float
    away: float
    lost: int


def finish(steps: float, losses: Iterable[tuple[float, float]]) -> Run:
    """Return the run whose steps take `steps` seconds.

    A loss is the seconds that a TPU lives, and those of steps to be done again. It costs the same
    whenever it comes, so more losses never make a run shorter.
    """
    ready, lived, lost = START_SECONDS + steps * (1 + SAVE_SECONDS / _SAVED_SECONDS), 0.0, 0
    for lives, again in losses:
        lived += lives
        if lived >= ready:
            break
        ready += START_SECONDS + again
        lost += 1
    return Run(ready, CREATE_SECONDS + lost * _AWAY_SECONDS, lost)


def preemptions(seed: int, hours: float) -> Iterator[tuple[float, float]]:
    """Draw losses for ever, one in `hours` hours on average; a seed always has the same luck."""
    chance = random.Random(seed)
    while True:
        # A life is exponential, and ends at any moment between two checkpoints.
        yield hours * 3600 * chance.expovariate(1), _SAVED_SECONDS * chance.random()


_SEEDS = range(200)
# The part of the runs that is in the range that is shown; half of the others are on each side.
_SHOWN = 0.9


def runs_of(capacity: Capacity, steps: float, hours: float) -> list[Run]:
    """Return the runs of a training: one of each seed on spot, else one."""
    if capacity is Capacity.SPOT:
        return [finish(steps, preemptions(seed, hours)) for seed in _SEEDS]
    ends = repeat((_FLEX_SECONDS, _SAVED_SECONDS / 2))
    return [finish(steps, ends if capacity is Capacity.FLEX_START else ())]


# --- The ways to buy the TPU

_KINDS = {
    "assumption": "your figure",
    "bound": "the compiler's lower bound, so times and costs are at least these",
    "measured": "a job's ledger: steps with input, evaluations and what lies between",
}


@dataclass(frozen=True)
class Training:
    """A training on a type of TPU: its steps, the seconds of one, and what stands behind them."""

    tpu: str
    steps: int
    step_seconds: float
    kind: str


@dataclass(frozen=True)
class Way:
    """One way to buy the TPU; the figures of its runs are ranges, in seconds from the request on.

    The TPU is billed while READY, the stack's other parts all the time. Without a source in the
    catalog, price and dollars are None.
    """

    training: Training
    capacity: Capacity
    hour: Price | None
    dollars: tuple[Decimal, Decimal] | None
    seconds: tuple[float, float]
    lost: tuple[int, int]


NOTHING = Total(Decimal(0), complete=True)


def ways_of(
    training: Training, region: str, hours: float, catalog: Catalog, others: Total = NOTHING
) -> Iterator[Way]:
    """Yield each way to buy a training's TPU, next to other parts."""
    tpu = catalog.accelerator(training.tpu)
    if tpu is None:
        raise UsageError(f"{training.tpu} is a GPU, which has no forecast: name a type of TPU")
    flexible = any(zone.rpartition("-")[0] == region for zone in tpu.flex_start)
    for way in (Capacity.ON_DEMAND, Capacity.SPOT, *([Capacity.FLEX_START] * flexible)):
        runs = runs_of(way, training.steps * training.step_seconds, hours)
        hour, dollars = catalog.prices.tpu(tpu, region, way), None
        if hour:
            whole = hour.amount + others.hour
            costs = [whole * Decimal(r.ready) + others.hour * Decimal(r.away) for r in runs]
            dollars = _range([round(cost / 3600, 6) for cost in costs])
        seconds = _range([run.ready + run.away for run in runs])
        yield Way(training, way, hour, dollars, seconds, _range([run.lost for run in runs]))


def _range(values: Sequence[Any]) -> tuple[Any, Any]:
    ordered, outside = sorted(values), round(len(values) * (1 - _SHOWN) / 2)
    return ordered[outside], ordered[-1 - outside]


def table(ways: Sequence[Way], start: datetime, columns: int | None) -> str:
    """Return a forecast for people; `columns` is the terminal's width, if there is one."""
    rows = [("TPU", "capacity", "hours", "cost", "ends by", "lost")]
    for way in ways:
        cost = [money(each, 0 if each >= 1000 else 2) for each in way.dollars or ()]
        end = f"{start + timedelta(seconds=way.seconds[1]):%Y-%m-%d}"
        took = _between([f"{seconds / 3600:,.1f}" for seconds in way.seconds])
        lost = _between([f"{count:,}" for count in way.lost])
        rows.append((way.training.tpu, way.capacity, took, _between(cost or [UNKNOWN]), end, lost))
    return "\n".join(aligned(rows, 2, columns, ("lost",)))


def _between(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def notes(ways: Sequence[Way], hours: float, others: Total) -> Iterator[str]:
    """Yield what stands behind each figure."""
    for each in dict.fromkeys(way.training for way in ways):
        step = f"{duration(each.step_seconds)} ({each.kind}: {_KINDS[each.kind]})"
        yield f"Step on {each.tpu}: {step}; {plural(each.steps, 'step')}."
    yield (
        f"Spot: a TPU lives {hours:g} hours on average (assumption; Google publishes no rate). "
        f"Ranges show luck alone: the middle {_SHOWN:.0%} of {len(_SEEDS)} simulated runs."
    )
    yield (
        f"A lost TPU is back after {duration(_AWAY_SECONDS)}, steps begin {START_SECONDS:g} s "
        f"later, and there is a checkpoint every {_SAVED_SECONDS:.0f} s (assumptions: SkyPilot's "
        "rhythm on spot TPUs, and our trainer's). Longer waits for capacity delay the end."
    )
    yield "Otherwise nothing fails (assumption), and flex-start is requested again after 7 days."
    if not others.complete:
        yield "Cost: at least, because the price of a part of the stack is unknown."
    sources = dict.fromkeys(way.hour.source for way in ways if way.hour)
    yield from (f"Prices of {source.date}: {source.url}" for source in sources)


# --- The command: where its figures come from

_MOST_LOST, _COUNT = 10_000, click.IntRange(1, 10**12)
_JSON = "the output of `tpu-training compile --json`"


@click.command("forecast")
@console.stack("The stack, all of whose parts are priced.")
@click.option("--accelerator-type", shell_complete=console.accelerators, help="Such as v3-8.")
@click.option("--region", help="Where, without a stack.")
@click.option("--answers", type=click.File(encoding="utf-8"), help=f"Types and bounds: {_JSON}.")
@click.option("--ledger", metavar="MODEL_DIR", help="A job whose steps were measured.")
@click.option("--step-seconds", type=click.FloatRange(1e-6, 1e6), help="The time of a step.")
@click.option("--steps", type=_COUNT, help="How many steps the training has.")
@click.option("--examples", type=_COUNT, help="Instead of steps: examples of all epochs.")
@click.option(
    "--preempted-after",
    type=click.FloatRange(0.25, 1000),
    default=LIFE_HOURS,
    show_default=True,
    help="Hours that a spot TPU lives on average, an assumption.",
)
@console.as_json()
def forecast_command(
    stack: str | None,
    accelerator_type: str | None,
    region: str | None,
    answers: TextIO | None,
    ledger: str | None,
    step_seconds: float | None,
    steps: int | None,
    examples: int | None,
    preempted_after: float,
    as_json: bool,
) -> None:
    """Forecast what a training costs and when it ends, with preemptions, by capacity and TPU.

    A step's time is your figure (--step-seconds), the compiler's bound (--answers, or with --stack
    what was compiled here), or measured (--ledger). Only a compiled answer knows the batch, which
    --examples needs.
    """
    catalog, others, trainings = Catalog(), NOTHING, list[Training]()
    timed = sum(each is not None for each in (answers, ledger, step_seconds))
    if (steps is None) == (examples is None):
        raise UsageError(
            "the length of the training is needed once. Use either --steps or --examples"
        )
    if timed > 1:
        raise UsageError("--answers, --ledger and --step-seconds exclude each other")
    priced = accelerator_type or region or answers
    if not priced:
        stack = named(stack)
    if stack is None:
        if region is None or (accelerator_type is None) == (answers is None):
            raise UsageError(
                "give --region with either --accelerator-type or --answers, or --stack"
            )
        trainings = _read(answers, steps, examples) if answers else []
    elif priced:
        raise UsageError("--stack can't be combined with --accelerator-type, --region or --answers")
    else:
        settings, others = _of_stack(stack, catalog)
        accelerator_type, region = stacks.tpu_type(settings), settings.region
        answer = None if timed else stacks.answer_of(settings)[1]
        if not timed and answer is None:
            run = f"run `{stacks.asking(settings)}`"
            raise UsageError(
                f"the time of a step is unknown. Use --step-seconds or --ledger, or {run}"
            )
        trainings = [_compiled(answer.as_json(), steps, examples)] if answer else []
    trainings = trainings or [_timed(accelerator_type or "", steps, step_seconds, ledger)]
    for each in trainings:
        if stack is None:
            errors.refuse([*stacks.unoffered(each.tpu, region, catalog)])
        hours = each.steps * each.step_seconds / 3600
        # Written so that what is not a number is refused, too.
        if not hours <= _MOST_LOST * preempted_after:
            most = f"{_MOST_LOST:,} times --preempted-after={preempted_after:g}"
            raise UsageError(f"{each.tpu} needs {hours:,.0f} hours: expected at most {most}")
    ways = [w for t in trainings for w in ways_of(t, region, preempted_after, catalog, others)]
    said, columns = [*notes(ways, preempted_after, others)], console.columns()
    if as_json:
        console.echo_json({"currency": "USD", "ways": [*map(asdict, ways)], "notes": said})
    else:
        lines = [table(ways, datetime.now(timezone.utc), columns), ""]
        click.echo("\n".join([*lines, *(wrapped(note, columns) for note in said)]))


def _of_stack(stack: str, catalog: Catalog) -> tuple[StackSettings, Total]:
    """Return a stack's settings, and what an hour of its parts but the TPU costs."""
    settings = stacks.sound(stack, catalog)
    if settings.tpu.slices > 1:
        why, cure = "is not forecast: a lost slice stops all", "Forecast a stack of one slice"
        raise UsageError(str(Problem("tpu.slices", settings.tpu.slices, why, cure)))
    whole = of_stack(settings, stack, catalog)
    others = tuple(line for line in whole.lines if line.part != "TPU")
    return settings, replace(whole, lines=others).configured


def _read(file: TextIO, steps: int | None, examples: int | None) -> list[Training]:
    try:
        found = [_compiled(each, steps, examples) for each in json.load(file)["answers"]]
    except (ValueError, LookupError, TypeError, OSError, RecursionError):
        found = []
    if not found:
        raise UsageError(f"--answers: {file.name} is not {_JSON}")
    return found


def _compiled(answer: Mapping[str, Any], steps: int | None, examples: int | None) -> Training:
    """Return the training of an answer. Raises ValueError or the like for what is none."""
    name, bound, batch = str(answer["tpu"]["name"]), answer["bound"], answer["global_batch_size"]
    if bound is None:
        raise UsageError(f"{name} has no bound, because the compiled step doesn't fit it")
    if examples and not batch:
        raise UsageError(f"the answer for {name} has no batch, which --examples needs. Use --steps")
    steps = steps or -(-(examples or 0) // batch)
    if not (bound["seconds"] > 0 and steps > 0):
        raise ValueError(name)
    return Training(name, steps, bound["seconds"], "bound")


def _timed(tpu: str, steps: int | None, step_seconds: float | None, ledger: str | None) -> Training:
    if steps is None:
        raise UsageError("--examples needs a compiled answer, which knows the batch. Use --steps")
    if step_seconds is not None:
        return Training(tpu, steps, step_seconds, "assumption")
    if ledger is None:
        raise UsageError("the time of a step is unknown. Use --step-seconds, --answers or --ledger")
    # They take a while to load.
    from tpu_core import ledger as ledgers
    from tpu_training.goodput import account
    from tpustack.goodput import files_of

    total = account.account(ledgers.read(files_of(ledger)))
    if not total.steps:
        raise UsageError(f"--ledger={ledger}: no training has done steps there")
    spent = sum(total.seconds[part] for part in ("step", "input", "evaluating", "between"))
    return Training(tpu, steps, spent / total.steps, "measured")
