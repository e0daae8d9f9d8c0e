"""`tpustack ci limits`: ends what costs when the machine that keeps a stack's limits is gone."""

from __future__ import annotations

import time

import click

from infra.names import names_of
from tpu_agent.limits import LimitEnforcer
from tpu_core.google import Answer, Body, Client
from tpu_core.tpu import Place
from tpustack import options
from tpustack.ci import inert
from tpustack.cloud.google import Google
from tpustack.errors import TpustackError
from tpustack.stacks.files import load, require_file


@click.command("limits")
@options.stack("The stack.", required=True)
def limits(stack: str) -> None:
    """Delete a stack's TPUs whose time is up (limits.timeToLiveHours), as its machine does.

    For a schedule: that machine may be preempted, off or hung, and its TPU keeps costing.
    """
    require_file(stack)
    settings, google = load(stack), Google()
    hours, names = settings.limits.time_to_live_hours, names_of(settings, stack)
    if hours is None:
        click.echo(f"{stack} has no limits.timeToLiveHours: nothing to do.")
        return

    def send(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        try:
            return google.exchange(method, url, headers, body)
        except TpustackError as error:
            raise OSError(str(error)) from None

    further = settings.tpu_zones[1:]
    place = Place(settings.project, settings.zone, names.bucket, lambda: further)
    # Only the machine itself can tell whether nothing trains.
    enforcer = LimitEnforcer(place, Client(send), lambda: True, time.time, _say)
    limited = {"tpus": names.tpus(settings.tpu.slices), "timeToLiveHours": hours, "recovery": {}}
    try:
        enforcer.look(limited | ({"request": names.tpu} if settings.tpu.queue else {}))
    except OSError as error:
        raise TpustackError(str(error)) from None


def _say(text: str) -> None:
    click.echo(inert.line(text))
