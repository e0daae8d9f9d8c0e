"""Long-running operations on custom jobs: deletions."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.operations import Work
from localcloud.core.store import Record
from localcloud.services.aiplatform.api import JOBS, job_name, shown_name
from localcloud.services.long_running import shown
from localcloud.services.paging import page

_PREFIX = "aiplatform/"
_TYPE = "type.googleapis.com/google.cloud.aiplatform.v1.DeleteOperationMetadata"
_API = JOBS.api
_PATH = "projects.locations.customJobs.operations"


def start(cloud: Cloud, job: str, work: Work) -> Json:
    """Begin an operation on a job, and answer it."""
    name = f"{job}/operations/{cloud.operations.number()}"
    return _show(name, cloud.operations.start(_PREFIX + name, work))


@_API.method(f"{_PATH}.get", permission="aiplatform.operations.list")
def get(cloud: Cloud, call: Call) -> Json:
    """Answer where an operation stands; it stays when its job is gone."""
    name = f"{job_name(call)}/operations/{call.params['operationsId']}"
    missing = ApiError(404, f"Operation {shown_name(name)} is not found.")
    return _show(name, cloud.operations.load(_PREFIX + name, missing))


@_API.method(f"{_PATH}.list", permission="aiplatform.operations.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """List a job's operations."""
    found = cloud.operations.items(f"{_PREFIX}{job_name(call)}/operations/")
    return page(call, "operations", [_show(k.removeprefix(_PREFIX), r) for k, r in found])


def _show(name: str, record: Record) -> Json:
    times = {
        "createTime": rfc3339(record["started"]),
        "updateTime": rfc3339(record.get("finished") or record["started"]),
    }
    answer = shown(
        shown_name(name), {"@type": _TYPE, "genericMetadata": times}, record, lambda made: made
    )
    answer["metadata"].pop("endTime", None)
    return answer
