"""The Vertex AI API's registration, its regional hosts, and the accounts that it acts as."""

from __future__ import annotations

from localcloud.core import data, projects
from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.hooks import service_enabled
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record
from localcloud.services import iam_policy

_SERVICE = "aiplatform.googleapis.com"
_REGIONS: tuple[str, ...] = tuple(data.load("compute-places"))
API = Api("aiplatform", ("v1",), hosts=[f"{region}-{_SERVICE}" for region in _REGIONS])
JOBS = Collection(API, "projects.locations.customJobs", "aiplatform.customJobs")
JOB = "custom-job"
"""The store's kind of custom jobs, by `projects/ID/locations/REGION/customJobs/NUMBER`."""


def place(call: Call) -> str:
    """Return the location in the path, which a region's own host serves alone.

    Raises:
        ApiError: 400 for another host than the region's.
    """
    region = call.params["locationsId"]
    if region not in _REGIONS or call.request.host != f"{region}-{_SERVICE}":
        raise invalid(
            f"The location {region} is not served at {call.request.host}: it is a region, whose "
            f"host is REGION-{_SERVICE}."
        )
    return f"projects/{call.project}/locations/{region}"


def job_name(call: Call) -> str:
    """Return the name of the job in the path, as it is stored."""
    return f"{place(call)}/customJobs/{call.params['customJobsId']}"


def shown_name(name: str) -> str:
    """Return a name as answers have it: with the project's number."""
    _, project, rest = name.split("/", 2)
    return f"projects/{projects.number(project)}/{rest}"


def load(cloud: Cloud, name: str) -> Record:
    """Return a job's record. Raises ApiError (404)."""
    return cloud.store.load(JOB, name, ApiError(404, f"CustomJob {shown_name(name)} is not found."))


def custom_code_agent(project: str) -> str:
    """Return the account as which jobs run that name none."""
    return f"service-{projects.number(project)}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"


@service_enabled[_SERVICE]
def _begin(cloud: Cloud, project: str) -> None:
    primary = f"service-{projects.number(project)}@gcp-sa-aiplatform.iam.gserviceaccount.com"
    iam_policy.add_account(cloud, project, primary, "roles/aiplatform.serviceAgent")
    custom = custom_code_agent(project)
    iam_policy.add_account(cloud, project, custom, "roles/aiplatform.customCodeServiceAgent")
