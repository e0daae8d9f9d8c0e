"""The custom jobs of a stack on Vertex AI, as something that goes with the stack.

People submit them, so that the program declares none. What it declares is that none is left: the
resource deletes nothing but what runs as the stack's own account when the account goes.
"""

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi import dynamic

from tpu_core.google import Json, vertex_root
from tpu_infra.names import JOB_LABEL
from tpu_infra.resources.request import ApiResourceProvider
from tpu_infra.rest import Api, ApiError, say

# The API leaves out of a list what a filter says (customJobs.list in its discovery document).
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED")
UNENDED = " AND ".join(f'state!="JOB_STATE_{state}"' for state in _ENDED)
"""The filter that leaves what still runs, waits or is being cancelled."""
_CANCELLING = "JOB_STATE_CANCELLING"
_MINUTES = 15.0


class CustomJobsApi(Api):
    """Calls `v1` of the Vertex AI API at the host of a region, which alone knows its jobs."""

    def __init__(self, region: str) -> None:
        super().__init__(f"{vertex_root(region)}/", "Vertex AI")


class VertexJobsProvider(ApiResourceProvider):
    """Cancels the custom jobs of an account once the stack no longer needs the account."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> dynamic.DiffResult:
        """Cancel nothing for another region: what runs in the old one is remembered."""
        replaces = [key for key in ("project", "account") if _olds.get(key) != _news.get(key)]
        changed = bool(replaces) or _olds.get("region") != _news.get("region")
        return dynamic.DiffResult(changes=changed, replaces=replaces, delete_before_replace=True)

    def create(self, props: dict[str, Any]) -> dynamic.CreateResult:
        """Note where jobs may run from now on."""
        return dynamic.CreateResult(props["account"], {**props, "regions": [props["region"]]})

    def update(
        self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]
    ) -> dynamic.UpdateResult:
        """Note another region, in which jobs may run as well as in the earlier ones."""
        regions = sorted({*_olds["regions"], _news["region"]})
        return dynamic.UpdateResult({**_news, "regions": regions})

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Cancel what runs in any of the regions, and wait until it has ended."""
        for region in _props["regions"]:
            _end(CustomJobsApi(region), _props, region)


class VertexJobs(dynamic.Resource, module="vertex", name="CustomJobs"):
    """The custom jobs that run as one account (`account`) of `project`, in any `regions` so far."""

    def __init__(
        self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(VertexJobsProvider(), name, {**props, "regions": None}, opts)


def account_of(job: Mapping[str, Any]) -> str:
    """Return the account that a job runs as; empty if `tpustack job` has not submitted it."""
    submitted = JOB_LABEL in job.get("labels", {})
    return str(job["jobSpec"].get("serviceAccount", "")) if submitted else ""


def _end(api: Api, props: Mapping[str, Any], region: str) -> None:
    """Cancel a region's jobs until none runs.

    Raises:
        RuntimeError: looking is not permitted, or Vertex AI does not end one.
    """
    running: list[Json] = []

    def over() -> bool:
        nonlocal running
        running = _running(api, props, region)
        for job in running:
            if job["state"] != _CANCELLING:
                _cancel(api, job)
        return not running

    try:
        api.wait(over, _MINUTES, "the cancellation")
    except TimeoutError:
        raise RuntimeError(
            f"{', '.join(map(_called, running))} on Vertex AI still runs {_MINUTES:g} minutes after"
            " its cancellation, and you keep paying for its TPU. Run `pulumi destroy` again to "
            "keep waiting"
        ) from None


def _running(api: Api, props: Mapping[str, Any], region: str) -> list[Json]:
    """Return what has not ended of a stack's jobs: only these run as its account."""
    parent = f"projects/{props['project']}/locations/{region}"
    try:
        found = api.list_all(parent, "customJobs", filter=UNENDED)
    except ApiError as error:
        if error.status == 403 and "disabled" in str(error):
            return []
        raise _refused(error, region) from None
    return [job for job in found if account_of(job) == props["account"]]


def _cancel(api: Api, job: Json) -> None:
    say(f"cancelling {_called(job)}, which runs on Vertex AI as a service account of this stack")
    try:
        api.call("POST", f"{job['name']}:cancel", {})
    except ApiError as error:
        if error.status == 403:
            raise _refused(error, job["name"].split("/")[3]) from None
        # One that has just ended can't be cancelled, and the next list shows which.
        if error.status not in (400, 404):
            raise


def _refused(error: ApiError, region: str) -> RuntimeError:
    return RuntimeError(
        f"jobs of this stack may still run on Vertex AI in {region}, and can't be cancelled: "
        f"{error}. Deploying a stack with jobs.vertex needs aiplatform.customJobs.list and "
        ".cancel (`tpustack permissions` lists all permissions)"
    )


def _called(job: Json) -> str:
    return f"the custom job {job['displayName']} ({job['name']})"
