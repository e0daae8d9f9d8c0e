"""`tpustack forecast`: what a training costs and when it ends, preemptions included.

A run is added up in virtual time, from the seconds of a training's steps and the TPUs that it
loses. Nothing is asked of Google. The month of bench/ runs the agent's real code against the same
losses; a test compares the two.
"""

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import repeat
from typing import Any, NamedTuple, TextIO

import click

from infra.catalog import Catalog
from infra.catalog.entries import Price
from infra.cost import UNKNOWN, aligned, of_stack, wrapped
from infra.settings.machines import Capacity
from tpu_core.words import duration, money, plural
from tpustack import console, stacks
from tpustack.errors import UsageError

# --- One run: its seconds with and without a TPU

# The rhythm of a table that SkyPilot published for spot TPUs, taken over from notes: a preemption
# in about 16 hours, 9.8 minutes from one job to the next. Its own deletion and half a poll are no
# part of the cloud's time to create. The trainer assumes the same rhythm (loop/train.py).
LIFE_HOURS = 16.0
DELETE_SECONDS = 45.0
CREATE_SECONDS = 9.8 * 60 - DELETE_SECONDS - 7.5
# A creation is within half of its mean; a life is exponential.
SPREAD = 0.5
# From READY to the first step: the trainer asks each 10 s, loads TensorFlow, restores, compiles.
START_SECONDS = 35.0
# A save keeps the steps waiting for so long.
SAVE_SECONDS = 0.5
# Between two checkpoints, as the trainer spaces them: Young's formula (loop/train.py).
_SAVED_SECONDS = math.sqrt(2 * SAVE_SECONDS * LIFE_HOURS * 3600)
_AWAY_SECONDS = DELETE_SECONDS + CREATE_SECONDS
# Flex-start ends after 7 days at most: docs.cloud.google.com/tpu/docs/request-using-flex-start.
_FLEX_SECONDS = 7 * 24 * 3600.0


class Loss(NamedTuple):
    """The end of a TPU: seconds that it lives, that none is READY, of steps to be done again."""

    lives: float
    away: float
    again: float


class Run(NamedTuple):
    """How one run goes: seconds with a TPU, which are billed, and without; how many it lost."""

    ready: float
    away: float
    lost: int


def finish(steps: float, losses: Iterable[Loss]) -> Run:
    """Return the run that does all steps, which take `steps` seconds.

    What a loss costs doesn't depend on when it comes, so that more losses never make a run
    shorter. Where a TPU lives hardly longer than a start takes, this is too much.
    """
    ready = START_SECONDS + steps * (1 + SAVE_SECONDS / _SAVED_SECONDS)
    lived, away, lost = 0.0, CREATE_SECONDS, 0
    for loss in losses:
        lived += loss.lives
        if lived >= ready:
            break
        ready += START_SECONDS + loss.again
        away += loss.away
        lost += 1
    return Run(ready, away, lost)


def preemptions(seed: int, hours: float) -> Iterator[Loss]:
    """Draw losses for ever, one in `hours` hours on average; a seed always has the same luck."""
    chance = random.Random(seed)
    while True:
        lives = hours * 3600 * chance.expovariate(1)
        away = DELETE_SECONDS + CREATE_SECONDS * chance.uniform(1 - SPREAD, 1 + SPREAD)
        # It comes at any moment between two checkpoints.
        yield Loss(lives, away, _SAVED_SECONDS * chance.random())


_SEEDS = range(200)
# The part of the runs below and above the range that is shown.
_TAIL = 0.05


def runs_of(capacity: Capacity, steps: float, hours: float) -> list[Run]:
    """Return the runs of a training: one of each seed on spot, else one."""
    if capacity is Capacity.SPOT:
        return [finish(steps, preemptions(seed, hours)) for seed in _SEEDS]
    ends = repeat(Loss(_FLEX_SECONDS, _AWAY_SECONDS, _SAVED_SECONDS / 2))
    return [finish(steps, ends if capacity is Capacity.FLEX_START else ())]


# --- The forecast of a training: each way to buy each TPU

_KINDS = {
    "assumption": "your figure",
    "bound": "the compiler's least time; real steps take longer, so all figures are at least",
    "measured": "a job's ledger: steps with input, evaluations and what lies between",
}


@dataclass(frozen=True)
class Training:
    """A training on a type of TPU: its steps, the seconds of one, and what stands behind them."""

    tpu: str
    steps: int
    step_seconds: float
    kind: str


class Place(NamedTuple):
    """Where TPUs are bought, how many, and what an hour of the stack's other parts costs."""

    region: str
    slices: int = 1
    others: Decimal = Decimal(0)
    complete: bool = True


@dataclass(frozen=True)
class Way:
    """One way to buy the TPU; the figures of its runs are ranges of two numbers.

    Attributes:
        hour: the TPUs' price; None, as the dollars then are: no source in the catalog names it.
        dollars: TPUs are billed while READY, the stack's other parts all the time.
        seconds: from the request for the first TPU to the last step.
    """

    training: Training
    capacity: Capacity
    hour: Price | None
    dollars: tuple[Decimal, Decimal] | None
    seconds: tuple[float, float]
    lost: tuple[int, int]


def ways_of(training: Training, place: Place, hours: float, catalog: Catalog) -> Iterator[Way]:
    """Yield each way to buy a training's TPU in a region. Raises KeyError for an unknown type."""
    tpu = catalog.accelerator(training.tpu)
    if tpu is None:
        raise KeyError(training.tpu)
    flexible = any(zone.rpartition("-")[0] == place.region for zone in tpu.flex_start)
    for way in (Capacity.ON_DEMAND, Capacity.SPOT, *([Capacity.FLEX_START] * flexible)):
        runs = runs_of(way, training.steps * training.step_seconds, hours)
        one, dollars = catalog.prices.tpu(tpu, place.region, way), None
        hour = one and one.times(place.slices)
        if hour:
            whole = hour.amount + place.others
            costs = [whole * Decimal(r.ready) + place.others * Decimal(r.away) for r in runs]
            dollars = _range([round(cost / 3600, 2) for cost in costs])
        seconds = _range([run.ready + run.away for run in runs])
        yield Way(training, way, hour, dollars, seconds, _range([run.lost for run in runs]))


def _range(values: Sequence[Any]) -> tuple[Any, Any]:
    ordered, tail = sorted(values), int(len(values) * _TAIL)
    return ordered[tail], ordered[-1 - tail]


# --- The same for people


def table(ways: Sequence[Way], start: datetime, columns: int) -> str:
    """Return a forecast for people, in `columns` columns."""
    rows = [("TPU", "capacity", "an hour", "hours", "cost", "ends by", "lost")]
    for way in ways:
        cost = [money(each, 0 if each >= 1000 else 2) for each in way.dollars or ()]
        hour = money(way.hour.amount) if way.hour else UNKNOWN
        end = f"{start + timedelta(seconds=way.seconds[1]):%Y-%m-%d}"
        took = _between([f"{seconds / 3600:.1f}" for seconds in way.seconds])
        lost = _between([str(count) for count in way.lost])
        tpu, capacity = way.training.tpu, str(way.capacity)
        rows.append((tpu, capacity, hour, took, _between(cost or [UNKNOWN]), end, lost))
    return "\n".join(aligned(rows, 2, columns, ("an hour", "lost")))


def _between(ends: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys(ends))


def notes(ways: Sequence[Way], place: Place, hours: float) -> Iterator[str]:
    """Yield what stands behind each figure."""
    for each in dict.fromkeys(way.training for way in ways):
        step = f"{duration(each.step_seconds)} ({each.kind}: {_KINDS[each.kind]})"
        yield f"Step on {each.tpu}: {step}; {plural(each.steps, 'step')}."
    yield (
        f"Spot: a TPU lives {hours:g} hours on average (assumption; Google publishes no rate). "
        f"Ranges are of luck alone: {len(_SEEDS)} simulated runs without {_TAIL:.0%} at each end."
    )
    yield (
        f"A lost TPU is back after {duration(_AWAY_SECONDS)}, steps begin {START_SECONDS:g} s "
        f"later, and there is a checkpoint every {_SAVED_SECONDS:.0f} s (assumptions: SkyPilot's "
        "rhythm on spot TPUs, and our trainer's). Longer waits for capacity delay the end."
    )
    yield (
        "On demand and flex-start: nothing fails (assumption). Flex-start ends after 7 days at "
        "most; then you request it again."
    )
    if not place.complete:
        yield "Cost: at least, because the price of a part of the stack is unknown."
    sources = dict.fromkeys(way.hour.source for way in ways if way.hour)
    yield from (f"Prices of {source.date}: {source.url}" for source in sources)


# --- The command: where its figures come from

_MOST_LOST, _LONGEST, _LAST_YEAR, _COLUMNS = 10_000, 1e6, 2100, 80
_JSON = "the output of `tpu-training compile --json`"


@click.command("forecast")
@console.stack("The stack, all of whose parts are priced.")
@click.option("--accelerator-type", shell_complete=console.accelerators, help="Such as v3-8.")
@click.option("--region", help="Where, without a stack.")
@click.option("--answers", type=click.File(encoding="utf-8"), help=f"Types and bounds: {_JSON}.")
@click.option("--ledger", metavar="MODEL_DIR", help="A job whose steps were measured.")
@click.option(
    "--step-seconds", type=click.FloatRange(1e-6, _LONGEST), help="How long a step takes."
)
@click.option("--steps", type=click.IntRange(1), help="How many steps the training has.")
@click.option("--examples", type=click.IntRange(1), help="Or examples, epochs included.")
@click.option(
    "--preempted-after",
    type=click.FloatRange(0.25, 1000),
    metavar="HOURS",
    default=LIFE_HOURS,
    show_default=True,
    help="How long a spot TPU lives on average, an assumption.",
)
@click.option("--start", type=click.DateTime(["%Y-%m-%d"]), help="The first day.  [default: now]")
@console.as_json()
def forecast_command(
    stack: str | None,
    accelerator_type: str | None,
    region: str | None,
    answers: TextIO | None,
    preempted_after: float,
    start: datetime | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Forecast what a training costs and when it ends, with preemptions, by capacity and TPU.

    A step's time is your figure (--step-seconds), the compiler's bound (--answers, or with --stack
    what was compiled here), or measured (--ledger). Only a compiled answer knows the batch, which
    --examples needs.
    """
    catalog, timed = Catalog(), [given["ledger"], given["step_seconds"], answers]
    if (given["steps"] is None) == (given["examples"] is None):
        raise UsageError("say how long the training is: either --steps or --examples")
    if sum(each is not None for each in timed) > 1:
        raise UsageError("--answers, --ledger and --step-seconds exclude each other")
    if start and start.year > _LAST_YEAR:
        raise UsageError(f"--start={start:%Y-%m-%d} is too late: expected {_LAST_YEAR} at most")
    if stack is None:
        if region is None or (accelerator_type is None) == (answers is None):
            raise UsageError("say --stack, or --region with either --accelerator-type or --answers")
        place, found = Place(region), _read(answers) if answers else []
    elif accelerator_type or region or answers:
        raise UsageError("--stack can't be combined with --accelerator-type, --region or --answers")
    else:
        accelerator_type, place, found = _of_stack(stack, catalog, asks=timed == [None] * 3)
    trainings = [_compiled(answer, given["steps"], given["examples"]) for answer in found]
    trainings = trainings or [_timed(accelerator_type or "", **given)]
    types = dict.fromkeys(each.tpu for each in trainings if stack is None)
    console.refuse([p for each in types for p in stacks.unoffered(each, place.region, catalog)])
    for each in trainings:
        hours = each.steps * each.step_seconds / 3600
        if hours > _MOST_LOST * preempted_after:
            most = f"{_MOST_LOST:,} times --preempted-after"
            raise UsageError(f"{each.tpu} needs {hours:,.0f} hours: expected at most {most}")
    ways = [w for each in trainings for w in ways_of(each, place, preempted_after, catalog)]
    said = [*notes(ways, place, preempted_after)]
    begin = start.replace(tzinfo=timezone.utc) if start else datetime.now(timezone.utc)
    if as_json:
        ends = [[begin + timedelta(seconds=each) for each in way.seconds] for way in ways]
        found = [{**asdict(w), "ends": end} for w, end in zip(ways, ends, strict=True)]
        console.echo_json({"currency": "USD", "ways": found, "notes": said})
    else:
        columns = console.columns()
        click.echo(f"{table(ways, begin, columns or _COLUMNS)}\n")
        click.echo("\n".join(wrapped(note, columns) for note in said))


def _of_stack(
    stack: str, catalog: Catalog, *, asks: bool
) -> tuple[str, Place, list[Mapping[str, Any]]]:
    """Return a stack's TPU, what is paid besides it and, if that is asked, what was compiled."""
    settings = stacks.sound(stack, catalog)
    lines = of_stack(settings, stack, catalog).lines
    parts = [line.configured for line in lines if line.part != "TPU"]
    others = sum((part.amount for part in parts if part), Decimal(0))
    place = Place(settings.region, settings.tpu.slices, others, None not in parts)
    answer = stacks.answer_of(settings)[1] if asks else None
    if asks and answer is None:
        raise UsageError(f"say --step-seconds or --ledger, or run `{stacks.asking(settings)}`")
    return settings.tpu.accelerator_type, place, [answer.as_json()] if answer else []


def _read(file: TextIO) -> list[Mapping[str, Any]]:
    try:
        found: list[Mapping[str, Any]] = json.load(file)["answers"]
        times = [one["bound"]["seconds"] for one in found if one["bound"]]
        batches = [one["global_batch_size"] or 1 for one in found if one["tpu"]["name"] + ""]
        sound = found and all(0 < each < _LONGEST for each in (*times, *batches))
    except (ValueError, LookupError, TypeError, OSError, RecursionError):
        sound = False
    if not sound:
        raise UsageError(f"--answers: {file.name} is not {_JSON}")
    return found


def _compiled(answer: Mapping[str, Any], steps: int | None, examples: int | None) -> Training:
    name, bound, batch = answer["tpu"]["name"], answer["bound"], answer["global_batch_size"]
    if bound is None:
        raise UsageError(f"{name} has no bound, because the compiled step doesn't fit it")
    if examples and not batch:
        raise UsageError(f"the answer for {name} has no batch, which --examples needs: say --steps")
    return Training(name, steps or math.ceil((examples or 0) / batch), bound["seconds"], "bound")


def _timed(
    tpu: str, step_seconds: float | None, ledger: str | None, steps: int | None, **_: object
) -> Training:
    if steps is None:
        raise UsageError("--examples needs a compiled answer, which knows the batch: say --steps")
    if step_seconds is not None:
        return Training(tpu, steps, step_seconds, "assumption")
    if ledger is None:
        raise UsageError("say how long a step takes: --step-seconds, --answers or --ledger")
    # They take a while to load.
    from tpu_training.goodput import account
    from tpu_training.goodput import ledger as ledgers
    from tpustack.goodput import files_of

    total = account.account(ledgers.read(files_of(ledger)))
    if not total.steps:
        raise UsageError(f"--ledger={ledger}: no training has done steps there")
    spent = sum(total.seconds[part] for part in ("step", "input", "evaluating", "between"))
    return Training(tpu, steps, spent / total.steps, "measured")
