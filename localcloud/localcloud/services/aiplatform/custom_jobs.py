"""Custom jobs: made, shown, listed, cancelled and deleted."""

from __future__ import annotations

import re
from collections.abc import Callable

from localcloud.core import accounts
from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, failed_precondition, invalid
from localcloud.core.operations import Work, effect
from localcloud.core.store import Record
from localcloud.services.aiplatform import containers, operations, pools
from localcloud.services.aiplatform.api import (
    JOB,
    JOBS,
    custom_code_agent,
    job_name,
    load,
    place,
    shown_name,
)
from localcloud.services.paging import page

_KEPT = ("displayName", "jobSpec", "labels")
_LONGEST_NAME = 128
_LABEL = re.compile(r"[a-z0-9_-]{0,64}")
_FILTER = re.compile(r'(state|display_name|displayName)\s*(!?=)\s*"?([^"\s]+)"?')


@JOBS.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Take a job, and run it soon."""
    parent = place(call)
    record = _checked(cloud, call)
    now = rfc3339(cloud.clock.now())
    name = f"{parent}/customJobs/{cloud.operations.number()}"
    record |= {"state": "JOB_STATE_PENDING", "createTime": now, "updateTime": now}
    with cloud.store.locked():
        pool = pools.pool_of(record["jobSpec"])
        pools.require(cloud, call.project, call.params["locationsId"], pool)
        cloud.store.put(JOB, name, record)
    work = Work("aiplatform.job.run", {"name": name}, cloud.seconds("tpu.create"))
    cloud.operations.start(f"aiplatform-internal/{name}", work)
    return _view(name, record)


@JOBS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return a job."""
    name = job_name(call)
    return _view(name, load(cloud, name))


@JOBS.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """List a region's jobs, the newest first; all, or those that a filter leaves."""
    found = cloud.store.items(JOB, f"{place(call)}/customJobs/")
    views = [_view(name, record) for name, record in found]
    views.sort(key=lambda view: str(view["createTime"]), reverse=True)
    if call.arg("readMask"):
        raise ApiError(501, "the local cloud has no readMask for custom jobs")
    if wanted := call.arg("filter"):
        terms = [_term(text) for text in wanted.split(" AND ")]
        views = [view for view in views if all(fits(view) for fits in terms)]
    return page(call, "customJobs", views)


@JOBS.method("cancel")
def cancel(cloud: Cloud, call: Call) -> Json:
    """Begin to end a job's container; one that has ended stays as it is."""
    name = job_name(call)
    with cloud.store.locked():
        record = load(cloud, name)
        if "endTime" in record or record["state"] == "JOB_STATE_CANCELLING":
            return {}
        cloud.store.put(JOB, name, record | {"state": "JOB_STATE_CANCELLING"})
    work = Work("aiplatform.job.cancel", {"name": name}, cloud.seconds("tpu.delete"))
    cloud.operations.start(f"aiplatform-internal/cancel/{name}", work)
    return {}


@effect("aiplatform.job.cancel")
def _cancelled(cloud: Cloud, name: str) -> None:
    containers.halt(cloud, name)
    error = {"code": 1, "message": "CANCELED"}
    containers.finish(cloud, name, "JOB_STATE_CANCELLED", error)


@JOBS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Forget a job that has ended."""
    name = job_name(call)
    record = load(cloud, name)
    if "endTime" not in record:
        raise failed_precondition(
            f"CustomJob {shown_name(name)} is in state {record['state']}: cancel it first."
        )
    return operations.start(cloud, name, Work("aiplatform.job.delete", {"name": name}))


@effect("aiplatform.job.delete")
def _forget(cloud: Cloud, name: str) -> None:
    containers.remove(cloud, name)
    cloud.store.delete(JOB, name)


def _term(text: str) -> Callable[[Json], bool]:
    """Return whether a job is as one comparison of a filter says."""
    compared = _FILTER.fullmatch(text.strip())
    if compared is None:
        raise ApiError(501, f"the local cloud filters custom jobs by state and name, not {text!r}")
    field = "state" if compared[1] == "state" else "displayName"
    return lambda view: (view[field] == compared[3]) == (compared[2] == "=")


def _checked(cloud: Cloud, call: Call) -> Record:
    record: Record = call.sent(_KEPT)
    title, spec = record.get("displayName", ""), record.get("jobSpec", {})
    if not 0 < len(title) <= _LONGEST_NAME:
        raise invalid(f"display_name must have 1 to {_LONGEST_NAME} characters.")
    for key, value in record.get("labels", {}).items():
        if not (_LABEL.fullmatch(key) and _LABEL.fullmatch(value)):
            raise invalid(f"Invalid label {key}: {value}.")
    containers.require_supported(spec)
    _require_account(cloud, call, spec.get("serviceAccount", ""))
    return record


def _require_account(cloud: Cloud, call: Call, email: str) -> None:
    if not email:
        return
    problem = accounts.problem(cloud, email)
    if problem:
        raise invalid(f"{problem}.")
    if email != custom_code_agent(call.project) and not accounts.may_act_as(cloud, call, email):
        raise ApiError(
            403,
            f"You do not have permission to act as service_account: {email}. (or it may not exist)",
        )


def _view(name: str, record: Record) -> Json:
    shown = {key: value for key, value in record.items() if not key.startswith("_")}
    return {"name": shown_name(name), **shown}
