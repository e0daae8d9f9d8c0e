"""`tpustack top`: what the hosts of a stack's TPUs do now, and what they have cost.

Duty cycle and memory of the chips come from Cloud Monitoring, all else from where the dashboard
has it: the TPU API and the ledgers of trainings. What no one measured stays empty, with the reason.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tpu_core import words
from tpu_core.google import Json
from tpu_core.times import parse_time
from tpu_infra.catalog import Catalog
from tpu_infra.cost import aligned, of_stack
from tpu_infra.names import names_of
from tpustack import console, errors, stacks
from tpustack.cloud.google import Forbidden, Google, Nodes, says_disabled, why_unreadable
from tpustack.dashboard.sources import Place, sources
from tpustack.engine import named

# Seconds between two looks: the ledger and the metrics have news once a minute.
_PAUSE = 15.0
# A start that still runs writes to its ledger once a minute.
_ALIVE = 180.0
# Chips that compute less of the time, in percent, are worth a colour.
_IDLE = 10.0


@click.command("top")
@console.stack("The stack whose TPUs to show.")
@console.as_json("hosts and trainings")
def top_command(stack: str | None, as_json: bool) -> None:
    """Show each host of a stack's TPUs: duty cycle, HBM, wait for input, and cost so far.

    On a terminal it looks again every 15 seconds, until Ctrl-C. Into a pipe, and with --json, it
    looks once. The cost is that of the TPU since its creation, at list price.
    """
    top = Top(named(stack), Google())
    seen = top.look()
    screen = Console()
    if as_json:
        console.echo_json(asdict(seen))
    elif not screen.is_terminal:
        click.echo("\n".join(lines(seen)))
    else:
        with Live(painted(seen, screen.width), console=screen) as live:
            while True:
                time.sleep(_PAUSE)
                live.update(painted(top.look_again(seen), screen.width))


@dataclass(frozen=True)
class Host:
    """A machine of a TPU; None is what is not known.

    Attributes:
        tpu: the TPU's name.
        host: its number, or the worker's as Cloud Monitoring has it.
        state: of the whole TPU.
        duty_cycle: percent of the time in which the chips computed, on average.
        hbm_used: bytes in use on all of its chips.
        hbm: bytes that they have.
        input_wait: the part of the running training's loops that waited for input.
        dollars: its part of the TPU's cost since that was created.
    """

    tpu: str
    host: str
    state: str
    duty_cycle: float | None
    hbm_used: float | None
    hbm: int | None
    input_wait: float | None
    dollars: Decimal | None


@dataclass(frozen=True)
class Training:
    """A training, by its ledger.

    Attributes:
        folder: its place in the bucket.
        runs: whether its trainer gave a sign of life lately.
        ago: seconds since the last one.
        ending: why its last start ended, as far as that could write.
        steps: how many count.
        goodput: the part of its time that went into them.
        input_wait: the part of the last start's loops that waited for input.
        dollars: what the whole stack has cost for it.
        complete: whether the price of every part is known; if not, it is too little.
    """

    folder: str
    runs: bool
    ago: float
    ending: str
    steps: int
    goodput: float
    input_wait: float | None
    dollars: str | None
    complete: bool

    @classmethod
    def of(cls, row: Json) -> "Training":
        """Return the training in a row of the dashboard."""
        ago = max(0.0, time.time() - row["end"])
        return cls(
            row["folder"],
            not row["ending"] and ago <= _ALIVE,
            ago,
            row["ending"],
            row["steps"],
            row["goodput"],
            row["inputWait"],
            row["cost"],
            row["complete"],
        )

    def __str__(self) -> str:
        parts = [words.plural(self.steps, "step"), f"goodput {self.goodput:.1%}"]
        if self.input_wait is not None:
            parts.append(f"input wait {self.input_wait:.1%}")
        if self.dollars:
            least = "" if self.complete else "at least "
            parts.append(f"{least}{words.money(Decimal(self.dollars))} so far")
        why = self.ending or "killed, or silent since"
        state = "runs" if self.runs else f"ended {words.duration(self.ago)} ago ({why})"
        return f"{self.folder} {state}: {', '.join(parts)}"


@dataclass(frozen=True)
class Seen:
    """One look at a stack: its hosts, its trainings from the newest on, and notes on both."""

    stack: str
    hosts: Sequence[Host]
    trainings: Sequence[Training]
    notes: Sequence[str]


class Top:
    """Looks at a stack, which its file describes. Raises UsageError if that is wrong."""

    def __init__(self, stack: str, google: Google) -> None:
        self._google, self._catalog = google, Catalog()
        settings = stacks.load(stack)
        self._names = names_of(settings, stack)
        self._place = Place(stack, self._names.bucket, settings)
        self._settings = settings
        tpu = self._catalog.accelerator(settings.tpu.accelerator_type, settings.tpu.topology)
        self._hosts = tpu.hosts if tpu else 1
        self._hbm = tpu.hbm_gib * 2**30 // tpu.hosts if tpu else None
        price = of_stack(settings, stack, self._catalog).tpu
        # All TPUs of a stack cost the same.
        self._hour = price.hour / (self._hosts * settings.tpu.slices) if price.complete else None
        self._sources = {one.topic: one for one in sources([self._place], google)}

    def look(self) -> Seen:
        """Return what there is now. Raises TpustackError if no TPU is there, or none is shown."""
        tpus, found = (self._sources[topic].message() for topic in ("tpus", "trainings"))
        if tpus["problem"]:
            raise errors.TpustackError(tpus["problem"])
        name, rows = self._place.name, tpus["data"]
        if all(row["state"] == "ABSENT" for row in rows):
            raise errors.Missing(
                f"the stack {name} has no TPU now: it is down, waits in Google's queue, or a limit "
                f"deleted its TPU. `pulumi up --stack {name}` makes what is missing"
            )
        notes = [f"Trainings are not known: {found['problem']}"] if found["problem"] else []
        measured, why = self._measured(rows)
        trainings = [Training.of(one) for one in found["data"]]
        running = [one for one in trainings if one.runs]
        # Its hosts do each step together, so all of them wait for the slowest.
        waits = running[0].input_wait if len(running) == 1 else None
        hosts = [host for row in rows for host in self._hosts_of(row, measured, waits)]
        return Seen(name, hosts, trainings, [*notes, *why])

    def look_again(self, before: Seen) -> Seen:
        """Return what there is now, or what there was `before` and why it is not known now."""
        try:
            return self.look()
        except errors.TpustackError as error:
            return Seen(before.stack, before.hosts, before.trainings, [f"Not read again: {error}"])

    def _hosts_of(
        self, row: Json, measured: Mapping[str, "Chips"], waits: float | None
    ) -> Iterator[Host]:
        there = row["state"] == "READY"
        dollars = self._dollars(row) if there else None
        of_worker = measured if measured and there else {}
        for number in range(self._hosts):
            worker = sorted(of_worker)[number] if of_worker else ""
            chips = of_worker.get(worker, Chips())
            yield Host(
                tpu=row["name"],
                host=worker if self._hosts > 1 and worker else str(number),
                state=row["state"],
                duty_cycle=chips.duty_cycle,
                hbm_used=chips.hbm_used,
                hbm=self._hbm,
                input_wait=waits if there else None,
                dollars=dollars,
            )

    def _dollars(self, row: Json) -> Decimal | None:
        """Return a host's part of what its TPU has cost."""
        if not row["created"] or self._hour is None:
            return None
        age = datetime.now(timezone.utc) - parse_time(row["created"])
        cost = self._hour * Decimal(max(0.0, age.total_seconds())) / 3600
        return cost.quantize(Decimal("1e-6"))

    def _measured(self, rows: Sequence[Json]) -> tuple[Mapping[str, "Chips"], list[str]]:
        """Return the chips by worker if they are surely those of the stack's TPU; notes otherwise.

        A series names worker and zone, but no TPU, and Google documents no way from one to the
        other. So workers are the TPU's own only where there is no other TPU that could have them.
        """
        project = self._settings.project
        (zone, *_) = dict.fromkeys(row["zone"] for row in rows if row["state"] != "ABSENT")
        try:
            workers = chips_in(self._google, project, zone)
        except Forbidden as error:
            grant = "roles/monitoring.viewer there (permission monitoring.timeSeries.list)"
            why = why_unreadable(error, project, _API, "metrics", grant)
            return {}, [f"Duty cycle and HBM are not known: {why}"]
        except errors.TpustackError as error:
            return {}, [f"Duty cycle and HBM are not known: {error}"]
        if not workers:
            return {}, [
                f"Duty cycle and HBM are not known: Cloud Monitoring has none of the last "
                f"{_RECENT.seconds // 60} minutes in {zone}. They arrive up to 3 minutes late, and "
                "only from chips that a program uses; the local cloud has no chips"
            ]
        alone = len(rows) == 1 and not self._others_in(zone)
        if alone and len(workers) == self._hosts:
            return workers, []
        return {}, [_together(workers, zone)]

    def _others_in(self, zone: str) -> bool:
        """Return whether the project has, or may have, another TPU in the zone."""
        for compute in (False, True):
            try:
                nodes = Nodes(self._google, self._settings.project, compute=compute).names(zone)
                for other, kind in nodes:
                    if not self._names.is_of_tpu(other) and (
                        not compute or kind in self._catalog.hosts
                    ):
                        return True
            except Forbidden as error:
                if not says_disabled(error):
                    return True
        return False


# --- The table.

_HEADING = ("TPU", "host", "state", "duty cycle", "HBM", "input wait", "cost")


def lines(seen: Seen, columns: int | None = None) -> list[str]:
    """Return a look as lines: the table, the trainings that run or else the last one, notes."""
    told = [one for one in seen.trainings if one.runs] or seen.trainings[:1]
    about = [*map(str, told)] or ["no training has written a ledger yet"]
    said = [console.line(text) for text in (*about, *seen.notes)]
    return [*aligned([*_rows(seen.hosts)], 3, columns), "", *said]


def _rows(hosts: Sequence[Host]) -> Iterator[tuple[str, ...]]:
    yield from (_HEADING, *map(_cells, hosts))
    known = [host.dollars for host in hosts if host.dollars is not None]
    if len(known) > 1:
        yield ("all", *[""] * 5, words.money(sum(known, Decimal(0))))


def painted(seen: Seen, columns: int) -> Text:
    """Return the lines for a terminal: hosts without a TPU in red, with idle chips in yellow."""
    heading, *others = lines(seen, columns)
    # On a narrow terminal each figure of a host has a line of its own.
    even = heading.split() == " ".join(_HEADING).split()
    styles = ["bold", *map(_style, seen.hosts)] if even else []
    styles += [""] * (1 + len(others) - len(styles))
    each = zip((heading, *others), styles, strict=True)
    return Text("\n").join(Text(line, style) for line, style in each)


def _style(host: Host) -> str:
    if host.state != "READY":
        return "red"
    return "yellow" if host.duty_cycle is not None and host.duty_cycle < _IDLE else ""


def _cells(host: Host) -> tuple[str, ...]:
    used = "-" if host.hbm_used is None else f"{host.hbm_used / 2**30:.1f}"
    hbm = "-" if host.hbm is None else f"{used} of {host.hbm / 2**30:.0f} GiB"
    return (
        console.line(host.tpu),
        console.line(host.host),
        console.line(host.state),
        "-" if host.duty_cycle is None else f"{host.duty_cycle:.0f}%",
        hbm,
        "-" if host.input_wait is None else f"{host.input_wait:.1%}",
        "-" if host.dollars is None else words.money(host.dollars),
    )


# --- Cloud Monitoring.

_API = "monitoring.googleapis.com"
_SERIES = f"https://{_API}/v3/projects/{{}}/timeSeries"
# Metrics of TPU VMs, sampled each minute and shown up to 180 seconds later:
# https://docs.cloud.google.com/tpu/docs/monitor-tpu. A series is a chip's (accelerator_id) of the
# resource tpu.googleapis.com/GceTpuWorker, with the labels resource_container, location, worker_id:
# https://docs.cloud.google.com/monitoring/api/resources (2026-01-23).
_DUTY_CYCLE = "tpu.googleapis.com/accelerator/duty_cycle"
_HBM_USED = "tpu.googleapis.com/accelerator/memory_used"
_RECENT = timedelta(minutes=10)


@dataclass(frozen=True)
class Chips:
    """What Cloud Monitoring has of a worker's chips: duty cycle on average, memory in all."""

    duty_cycle: float | None = None
    hbm_used: float | None = None


def chips_in(google: Google, project: str, zone: str) -> dict[str, Chips]:
    """Return the last figures of each worker in a zone, whosever TPU it is of. Raises ApiError."""
    duty, used = (_last(google, project, zone, each) for each in (_DUTY_CYCLE, _HBM_USED))
    return {
        worker: Chips(
            sum(duty[worker]) / len(duty[worker]) if worker in duty else None,
            sum(used[worker]) if worker in used else None,
        )
        for worker in {*duty, *used}
    }


def _last(google: Google, project: str, zone: str, metric: str) -> dict[str, list[float]]:
    """Return a metric's last value of each chip, by worker."""
    now = datetime.now(timezone.utc)
    query = {
        "filter": f'metric.type = "{metric}" AND resource.labels.location = "{zone}"',
        "interval.startTime": _at(now - _RECENT),
        "interval.endTime": _at(now),
    }
    found: dict[str, list[float]] = {}
    for series in google.pages(_SERIES.format(project), "timeSeries", query):
        if points := series.get("points"):
            worker = series["resource"]["labels"].get("worker_id", "")
            found.setdefault(worker, []).append(_number(points[0]["value"]))
    return found


def _number(value: Mapping[str, Any]) -> float:
    # JSON has 64-bit integers as text.
    return float(value.get("doubleValue", value.get("int64Value", 0)))


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _together(workers: Mapping[str, Chips], zone: str) -> str:
    """Return what is known of a zone's workers where no one can tell whose they are."""
    duty = [one.duty_cycle for one in workers.values() if one.duty_cycle is not None]
    used = [one.hbm_used for one in workers.values() if one.hbm_used is not None]
    parts = [f"a duty cycle of {min(duty):.0f}% to {max(duty):.0f}%"] if duty else []
    parts += [f"{sum(used) / 2**30:.1f} GiB of HBM in use"] if used else []
    return (
        f"Cloud Monitoring names no TPU, so whose chips these are is not known: "
        f"{words.plural(len(workers), 'worker')} of the project in {zone}, {' and '.join(parts)}"
    )
