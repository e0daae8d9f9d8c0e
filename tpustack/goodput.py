"""The goodput of a job for people: the files of its ledger, its cost, and tables.

The account itself is made by the training package (tpu_training.goodput), which its own report
uses, too. Names of machines and causes come from the bucket, which others may write: each passes
through `line` before a terminal gets it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from tpu_core import words
from tpu_core.bucket import Bucket, Item
from tpu_core.google import GoogleError
from tpu_core.ledger import FOLDER, File
from tpu_infra.cost import Estimate, aligned
from tpu_training.goodput.account import STATES, Account
from tpustack.cloud.google import Google
from tpustack.console import line
from tpustack.errors import TpustackError, UsageError

_SCHEME = "gs://"
_AT_ONCE = 8


def files_of(model_dir: str, google: Google | None = None) -> Iterator[File]:
    """Yield the files of the ledger in a model directory. Raises TpustackError.

    Args:
        model_dir: here or gs://…
        google: a client to use; by default a new one.
    """
    where = model_dir.rstrip("/")
    yield from _objects(where, google) if where.startswith(_SCHEME) else _paths(where)


def _paths(where: str) -> Iterator[File]:
    if not Path(where).is_dir():
        raise UsageError(f"{where} is not a folder")
    for path in sorted(Path(where, FOLDER).glob("*.json")):
        yield File(str(path), path.read_text(encoding="utf-8", errors="replace"))


def _objects(where: str, google: Google | None) -> Iterator[File]:
    name, _, folder = where.removeprefix(_SCHEME).partition("/")
    bucket = Bucket(name, (google or Google()).exchange)

    def fetch(item: Item) -> File | None:
        if (content := bucket.read(item.path)) is None:
            return None  # Deleted since it was listed.
        return File(f"{_SCHEME}{name}/{item.path}", content[0].decode(errors="replace"))

    # A job that was preempted often has hundreds.
    try:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            found = bucket.items(f"{folder}/{FOLDER}/")
            # TensorFlow's own marks of folders are objects, too.
            own = (item for item in found if item.path.endswith(".json"))
            yield from filter(None, threads.map(fetch, own))
    except GoogleError as error:
        raise TpustackError(str(error)) from None


# Without a TPU, only the other machines cost money.
_WITHOUT_TPU = ("queued", "provisioning", "recovering", "stopped")
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Money:
    """US dollars of a job's wall time.

    Attributes:
        hour: What the whole stack costs in an hour.
        states: What each state has cost.
        step: What a step that counts has cost, with all that did not count; None without any.
        complete: Whether the price of every part is known; if not, all of it is too little.
    """

    hour: Decimal
    states: dict[str, Decimal]
    step: Decimal | None
    complete: bool

    @property
    def total(self) -> Decimal:
        """All of it."""
        return sum(self.states.values(), Decimal(0))

    def __str__(self) -> str:
        """Format it for people."""
        most = "" if self.complete else "at least "
        step = f", {most}{words.money(self.step * 1000)} a thousand steps" if self.step else ""
        return f"{most}{words.money(self.total)} at {words.money(self.hour, 4)} an hour{step}"

    def to_dict(self) -> dict[str, object]:
        """Return all of it for JSON."""
        return {
            "hour": f"{self.hour:f}",
            "total": f"{self.total:f}",
            "step": None if self.step is None else f"{self.step:f}",
            "states": {state: f"{amount:f}" for state, amount in self.states.items()},
            "complete": self.complete,
        }


def money_of(total: Account, estimate: Estimate) -> Money:
    """Price a job's account by the stack's estimate as it is set now.

    Earlier starts may have run on other machines: the ledger does not know what those cost.
    """
    hour, tpu = estimate.configured, estimate.tpu.hour
    states = {}
    for state, seconds in total.seconds.items():
        hours = Decimal(f"{seconds:.3f}") / _SECONDS_PER_HOUR
        cost = hours * (hour.hour - tpu if state in _WITHOUT_TPU else hour.hour)
        states[state] = cost.quantize(Decimal("1e-6"))
    whole = sum(states.values(), Decimal(0))
    step = whole / total.steps if total.steps else None
    return Money(hour.hour, states, step and step.quantize(Decimal("1e-9")), hour.complete)


# The least wall time that is shown in a unit, the unit's seconds and its name.
_UNITS = ((7200.0, 3600, "hours"), (0.0, 60, "minutes"))


def tables(total: Account, money: Money | None, columns: int | None = None) -> Iterator[str]:
    """Yield where the wall time went: by state, by cause, and by TPU and machine if several."""
    unit = _unit(total)[1]
    rows = [("state", "what it is", unit, "part", *(["cost"] if money else []))]
    for name, meaning in (*STATES, ("", "wall time")):
        seconds = total.seconds[name] if name else total.wall
        amount = (money.states[name] if name else money.total) if money else None
        cost = [] if amount is None else [words.money(amount)]
        rows.append((name, meaning, *_shares(seconds, total), *cost))
    yield "\n".join(aligned(rows, 2, columns, ("what it is",)))
    rows = [("badput by cause", unit, "part")]
    rows += [(line(cause), *_shares(seconds, total)) for cause, seconds in total.causes.items()]
    yield "\n".join(aligned(rows, 1, columns))
    rows = [("TPU or machine", f"{unit} by state")]
    for tpu, states in total.tpus.items():
        spent = (f"{state} {_shares(spent, total)[0]}" for state, spent in states.items())
        rows.append((line(tpu), line(", ".join(spent))))
    for machine, seconds in total.machines.items():
        rows.append((line(machine) or "not named", f"training {_shares(seconds, total)[0]}"))
    if total.tpus or len(total.machines) > 1:
        yield "\n".join(aligned(rows, 2, columns))


def _unit(total: Account) -> tuple[int, str]:
    return next((size, name) for least, size, name in _UNITS if total.wall >= least)


def _shares(seconds: float, total: Account) -> tuple[str, str]:
    """Return a time in the unit of the table, and its part of the wall time."""
    part = seconds / total.wall if total.wall else 0.0
    return f"{seconds / _unit(total)[0]:.2f}", f"{part:.1%}"
