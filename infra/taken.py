"""TPUs that Google has taken away: a preview says so, and an update makes them anew.

A preempted TPU stays, in a state that it never leaves again, until it is deleted ("You can't
restart TPU Spot VMs, and you must recreate them after preemption", "Manage TPU Spot VMs",
docs.cloud.google.com/tpu/docs/spot, 2025-08-28).
Google's provider has no property that differs then, so the program looks for itself.
A TPU out of the queue has no need of this: its resource looks (infra/queued/request.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pulumi

from infra import beside, enabled
from infra.settings import StackSettings

Taken = Callable[[], Mapping[str, str]]


def look(settings: StackSettings, names: Sequence[str]) -> Taken:
    """Look for the stack's TPUs beside the program, by one list.

    Returns:
        What waits for the look-up and returns, by the name of each TPU that Google has taken away,
        a text that no other TPU of this name gets. Empty where nobody may look, or where a preview
        would wait too long.
    """
    if settings.tpu.queue is not None:
        return dict
    looked = beside.start(lambda: _taken(settings, names))

    def wait() -> Mapping[str, str]:
        # No error of any kind may fail a preview; the provider says what is wrong.
        with suppress(Exception):
            return looked.result(beside.LONGEST if pulumi.runtime.is_dry_run() else None)
        return {}

    return wait


def _taken(settings: StackSettings, names: Sequence[str]) -> Mapping[str, str]:
    if (session := enabled.users_session()) is None:
        return {}
    # Takes a while to load, which only those who have credentials should wait for.
    from infra.queued.api import TpuApi
    from infra.queued.state import GONE, standing

    # Where Google can't be reached the provider says so, and a preview should not wait for this.
    api = TpuApi(session, connects=1)
    found = standing(
        api, {"project": settings.project, "zone": settings.zone, "nodes": list(names)}
    )
    return {
        name: f"In place of that of {node.get('createTime')}, which is {node['state']}"
        for name, node in zip(names, found, strict=True)
        if node and node.get("state") in GONE
    }
