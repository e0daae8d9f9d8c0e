"""`tpustack ci limits`: ends what costs when the machine that keeps a stack's limits is gone."""

from __future__ import annotations

import time

import click

from infra.names import names_of
from infra.settings import StackSettings
from infra.startup.agent.google import Json, Place, parse
from infra.startup.agent.limits import LimitEnforcer
from tpustack import options
from tpustack.cloud.google import Google
from tpustack.errors import TpustackError
from tpustack.stacks.files import load, require_file


@click.command("limits")
@options.stack("The stack.", required=True)
def limits(stack: str) -> None:
    """Delete a stack's TPUs whose time is up (limits.timeToLiveHours), as its machine does.

    For a schedule: that machine may be preempted, off or hung, and its TPU costs on.
    """
    require_file(stack)
    settings = load(stack)
    if settings.limits.time_to_live_hours is None:
        click.echo(f"{stack} has no limits.timeToLiveHours: nothing to do.")
        return
    try:
        _look(settings, stack, Google())
    except OSError as error:
        raise TpustackError(str(error)) from None


def _look(settings: StackSettings, stack: str, google: Google) -> None:
    def call(method: str, url: str, body: str | None) -> tuple[int, Json]:
        headers = {} if body is None else {"Content-Type": "text/plain"}
        try:
            status, _, content = google.exchange(method, url, headers, (body or "").encode())
        except TpustackError as error:
            raise OSError(str(error)) from None
        return status, parse(content)

    names, zones = names_of(settings, stack), settings.tpu_zones
    place = Place(settings.project, settings.zone, names.bucket, lambda: zones[1:])
    # Whether nothing trains, only the machine itself can tell.
    enforcer = LimitEnforcer(place, call, lambda: True, time.time, click.echo)
    enforcer.look(
        {
            "tpus": names.tpus(settings.tpu.slices),
            "timeToLiveHours": settings.limits.time_to_live_hours,
            **({"recovery": {}} if settings.recovery.enabled else {}),
            **({"request": names.tpu} if settings.tpu.queue else {}),
        }
    )
