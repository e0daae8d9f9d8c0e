"""Connectivity Tests: kept questions whether one end reaches another, answered at each run."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json, page
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record, Work, effect
from localcloud.services import iam_policy
from localcloud.services.networkmanagement import ends, operations, steps, trace
from localcloud.services.networkmanagement.api import TEST, TESTS, place, test_name

# The reference says at most 40 characters; Google takes longer ones (47 in an answer of 2025).
_ID = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_KEPT = (
    *("source", "destination", "protocol", "description", "labels", "relatedProjects"),
    "bypassFirewallChecks",
)


@TESTS.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Keep a test and run it."""
    test_id = call.arg("testId")
    if not _ID.fullmatch(test_id):
        raise invalid(f"test_id '{test_id}' does not match {_ID.pattern}.")
    name = f"{place(call)}/connectivityTests/{test_id}"
    now = rfc3339(cloud.clock.now())
    ends.check(call.body)
    record = _set(call.sent(_KEPT)) | {"name": name, "createTime": now, "updateTime": now}
    cloud.store.add(TEST, name, record, ApiError(409, f"Resource '{name}' already exists"))
    return _run(cloud, call, name, "create")


@TESTS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return a test with the answer of its last run."""
    return _load(cloud, test_name(call))


@TESTS.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """List the project's tests."""
    found = cloud.store.items(TEST, f"{place(call)}/connectivityTests/")
    return page(call, "resources", [record for _, record in found])


@TESTS.method("rerun")
def rerun(cloud: Cloud, call: Call) -> Json:
    """Answer a test's question anew."""
    name = test_name(call)
    _load(cloud, name)
    return _run(cloud, call, name, "rerun")


@TESTS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change a test's question, and answer the new one."""
    name = test_name(call)
    fields = call.mask()
    wrong = sorted(set(fields) - set(_KEPT))
    if wrong or not fields:
        raise invalid(f"update_mask: {call.arg('updateMask')!r} must name of {', '.join(_KEPT)}.")
    with cloud.store.locked():
        record = _load(cloud, name) | {field: call.body.get(field) for field in fields}
        record["updateTime"] = rfc3339(cloud.clock.now())
        ends.check(record)
        cloud.store.put(TEST, name, {"protocol": "TCP"} | _set(record))
    return _run(cloud, call, name, "update")


@TESTS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Forget a test."""
    name = test_name(call)
    _load(cloud, name)
    work = Work("networkmanagement.delete", {"name": name}, cloud.seconds("network.update"))
    return operations.start(cloud, call, work, verb="delete", target=name)


iam_policy.serve(TESTS, lambda cloud, call: str(_load(cloud, test_name(call))["name"]))


def _run(cloud: Cloud, call: Call, name: str, verb: str) -> Json:
    arguments = {"name": name, "project": call.project}
    work = Work("networkmanagement.run", arguments, cloud.seconds("network.update"))
    return operations.start(cloud, call, work, verb=verb, target=name)


@effect("networkmanagement.run")
def _answer(cloud: Cloud, name: str, project: str) -> Record:
    record = _load(cloud, name)
    try:
        packet = ends.packet(cloud, project, record)
        bypass = record.get("bypassFirewallChecks", False)
        found = trace.analyse(cloud, packet, bypass_firewall=bypass)
    except ends.NotFound as missing:
        aborted = steps.abort(missing.cause, missing.resource)
        found = trace.details(cloud, [aborted], {})
    for step in found["traces"][0]["steps"]:
        step["projectId"] = project
    record["reachabilityDetails"] = found
    cloud.store.put(TEST, name, record)
    return record


@effect("networkmanagement.delete")
def _forget(cloud: Cloud, name: str) -> None:
    cloud.store.delete(TEST, name)


def _set(record: Record) -> Record:
    """Return what is set: Google shows neither false nor empty fields of a test."""
    return {key: value for key, value in record.items() if value}


def _load(cloud: Cloud, name: str) -> Record:
    return cloud.store.load(TEST, name, ApiError(404, f"Resource '{name}' was not found"))
