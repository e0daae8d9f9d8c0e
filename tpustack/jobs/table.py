"""Shows jobs to people and to programs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from tpu_agent.jobs import queue
from tpu_agent.jobs.queue import ENDED, RUNNING, Job
from tpustack import inert

if TYPE_CHECKING:
    from rich.table import Table

_COMMAND = 30
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def rows(jobs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is known of all jobs: those that run, those that wait in their order, others."""
    next_ones = queue.waiting(jobs)
    places = {name: place for place, name in enumerate(next_ones, 1)}

    def rank(name: str) -> tuple[int, float, str]:
        state = jobs[name]["state"]
        kind = 0 if state == RUNNING else 2 if state in ENDED else 1
        at = -jobs[name]["submitted"] if kind == 2 else places.get(name, len(jobs))
        return kind, at, name

    return [
        {"name": name, "place": places.get(name), **jobs[name]} for name in sorted(jobs, key=rank)
    ]


def table(shown: list[dict[str, Any]]) -> Table:
    """Return a table of rows."""
    # Commands that print no table needn't load it.
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("job", "state", "next", "prio", "tries", "age", "took"):
        made.add_column(name, no_wrap=True)
    # The one that gives way where the terminal is narrow.
    made.add_column("command", min_width=12)
    now = time.time()
    for row in shown:
        took = span((row["ended"] or now) - row["started"]) if row["started"] else ""
        cells = [row["name"], _state(row), row["place"] or "", row["priority"], row["tries"]]
        cells += [span(now - row["submitted"]), took, _short(row["command"])]
        made.add_row(*(Text(inert.line(str(cell))) for cell in cells))
    return made


def document(job: Job, bucket: str) -> dict[str, Any]:
    """Return all that is known of a job, for programs."""
    return {**dataclasses.asdict(job), "bucket": f"gs://{bucket}"}


def lines(job: Job, bucket: str) -> list[str]:
    """Return all that is known of a job, for people."""
    spec = job.spec
    shown = [
        f"{job.name}: {job.state}" + (f" ({job.reason})" if job.reason else ""),
        f"  command    {spec.command}",
        f"  framework  {spec.framework}",
        f"  submitted  {moment(job.submitted)} by {job.by or 'somebody'}",
        f"  budgets    {spec.failures} failures, {spec.preemptions} preemptions",
        f"  folder     gs://{bucket}/jobs/{job.name}",
    ]
    if spec.source:
        shown.insert(2, f"  source     {spec.source} ({spec.archive[:12]})")
    if spec.vertex:
        spot = "spot " if spec.vertex.get("strategy") == "SPOT" else ""
        where = f"{spot}{spec.vertex.get('tpu')} of Vertex AI in {spec.vertex.get('region')}"
        shown.insert(2, f"  runs on    {where}, {job.custom_job or 'not yet known there'}")
    if spec.after:
        shown.append(f"  after      {', '.join(spec.after)}")
    if job.code is not None:
        shown.append(f"  exit code  {job.code}")
    for one in job.tries:
        ended = f"{one.why} after {span(one.ended - one.started)}" if one.ended else "runs"
        code = f", exit code {one.code}" if one.code is not None else ""
        shown.append(f"  try {one.number}: {moment(one.started)} on {one.machine}, {ended}{code}")
    return [inert.unbroken(line) for line in shown]


def moment(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{datetime.fromtimestamp(seconds, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """Return a duration as people read it."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _short(command: str) -> str:
    return command if len(command) <= _COMMAND else f"{command[: _COMMAND - 1]}…"


def _state(row: Mapping[str, Any]) -> str:
    if row["state"] == RUNNING and row["stop"]:
        return "stopping"
    return f"{row['state']} ({row['code']})" if row["code"] else str(row["state"])
