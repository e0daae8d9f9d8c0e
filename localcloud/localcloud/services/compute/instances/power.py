"""Instances on and off: start, stop, reset, preemption, and what the guest does by itself."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud, machine_powered_off
from localcloud.core.errors import ApiError
from localcloud.core.store import Record, effect
from localcloud.services.compute.api import STORE
from localcloud.services.compute.instances import capacity, lifecycle, machine
from localcloud.services.compute.instances.records import INSTANCES, KIND, ended, set_status
from localcloud.services.compute.resources import begin, load


def _load(cloud: Cloud, call: Call, what: str, *statuses: str) -> Record:
    """Return the instance of a call that needs it to have one of `statuses`."""
    record = load(cloud, KIND.path(call))
    if record["status"] not in statuses:
        raise ApiError(
            400,
            f"The resource '{record['name']}' is not ready: {what} is not possible while its "
            f"status is {record['status']}.",
            reason="resourceNotReady",
        )
    return record


def _begin(cloud: Cloud, call: Call, type_: str, step: str) -> Json:
    path = KIND.path(call)
    return begin(cloud, call, KIND, type_, path, f"compute.instance.{type_}", step)


@INSTANCES.method("start")
def start_instance(cloud: Cloud, call: Call) -> Json:
    """Boot a stopped instance; one that runs is left alone."""
    record = _load(cloud, call, "start", "TERMINATED", "RUNNING")
    if record["status"] == "TERMINATED":
        set_status(cloud, KIND.path(call), "PROVISIONING")
    return _begin(cloud, call, "start", "start")


@effect("compute.instance.start")
def _start(cloud: Cloud, path: str) -> None:
    record = load(cloud, path)
    if record["status"] == "RUNNING":
        return
    try:
        capacity.require(cloud, record)
    except ApiError:
        set_status(cloud, path, "TERMINATED")
        raise
    lifecycle.boot(cloud, path)


@INSTANCES.method("stop")
def stop_instance(cloud: Cloud, call: Call) -> Json:
    """Halt an instance; one that is off is left alone."""
    record = _load(cloud, call, "stop", "TERMINATED", "RUNNING")
    if record["status"] == "RUNNING":
        set_status(cloud, KIND.path(call), "STOPPING")
    return _begin(cloud, call, "stop", "stop")


@effect("compute.instance.stop")
def _stop(cloud: Cloud, path: str) -> None:
    cloud.machines.halt(path)
    _stopped(cloud, path)


@INSTANCES.method("reset")
def reset_instance(cloud: Cloud, call: Call) -> Json:
    """Boot a running instance again without asking its processes first."""
    _load(cloud, call, "reset", "RUNNING")
    return _begin(cloud, call, "reset", "start")


@effect("compute.instance.reset")
def _reset(cloud: Cloud, path: str) -> None:
    cloud.machines.halt(path, grace=0)
    cloud.machines.boot(machine.spec(cloud, load(cloud, path)))


@INSTANCES.method("simulateMaintenanceEvent")
def simulate_maintenance_event(cloud: Cloud, call: Call) -> Json:
    """Preempt a spot instance; an ordinary one migrates, which its guest does not notice."""
    record = _load(cloud, call, "simulateMaintenanceEvent", "RUNNING")
    if not record["scheduling"]["preemptible"]:
        return begin(cloud, call, KIND, "simulateMaintenanceEvent", KIND.path(call))
    return _begin(cloud, call, "preempted", "stop")


@effect("compute.instance.preempted")
def preempt(cloud: Cloud, path: str) -> None:
    """Take a spot instance back as Google does: 30 seconds' notice, then stop or delete it."""
    record = set_status(cloud, path, "STOPPING")
    cloud.machines.preempt(path)
    if record["scheduling"].get("instanceTerminationAction") == "DELETE":
        lifecycle.delete(cloud, path)
    else:
        _stopped(cloud, path)


@machine_powered_off
def _went_off(cloud: Cloud, key: str) -> None:
    if "/instances/" in key and cloud.store.get(STORE, key) is not None:
        _stopped(cloud, key)


def _stopped(cloud: Cloud, path: str) -> None:
    set_status(cloud, path, "TERMINATED", lastStopTimestamp=rfc3339(cloud.clock.now()))
    ended.run(cloud, path)
