"""Stops preemptible instances (the predecessors of spot ones) after a day.

Source: cloud.google.com/compute/docs/instances/create-use-preemptible ("always stop after 24
hours"; spot ones have no such limit). A stop and a start begin a new day, a reset does not.
"""

from __future__ import annotations

from functools import partial

from localcloud.core.clock import seconds_of
from localcloud.core.cloud import Cloud, cloud_started
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.instances import power
from localcloud.services.compute.instances.records import started

_DAY = 86400.0


@started
def begin(cloud: Cloud, path: str) -> None:
    """Plan the end of an instance that may run for a day only."""
    record = cloud.store.get(STORE, path)
    if record is not None and _ends(record):
        since = record["lastStartTimestamp"]
        cloud.clock.at(seconds_of(since) + _DAY, partial(_end, cloud, path, since))


@cloud_started
def _plan_again(cloud: Cloud) -> None:
    for path in cloud.store.keys(STORE):
        if "/instances/" in path:
            begin(cloud, path)


def _end(cloud: Cloud, path: str, since: str) -> None:
    record = cloud.store.get(STORE, path)
    if record is not None and _ends(record) and record["lastStartTimestamp"] == since:
        power.preempt(cloud, path)


def _ends(record: Record) -> bool:
    scheduling = record["scheduling"]
    old_kind = scheduling["preemptible"] and scheduling["provisioningModel"] != "SPOT"
    return bool(old_kind and record["status"] == "RUNNING")
