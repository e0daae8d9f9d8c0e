"""The Google APIs that a stack needs, which are disabled, and when a new one answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tpu_core.google import Client
from tpu_infra import credentials
from tpu_infra.rest import Api
from tpu_infra.settings import StackSettings

_PAGE: Final = 200
TPU_API = "tpu.googleapis.com"
COMPUTE_API = "compute.googleapis.com"
STORAGE_API = "storage.googleapis.com"
IAM_API = "iam.googleapis.com"
CREDENTIALS_API = "iamcredentials.googleapis.com"
PROJECTS_API = "cloudresourcemanager.googleapis.com"
KMS_API = "cloudkms.googleapis.com"
BILLING_API = "cloudbilling.googleapis.com"
BUDGETS_API = "billingbudgets.googleapis.com"
LOGGING_API = "logging.googleapis.com"
MONITORING_API = "monitoring.googleapis.com"
PUBSUB_API = "pubsub.googleapis.com"
VERTEX_API = "aiplatform.googleapis.com"


def apis_of(settings: StackSettings) -> tuple[str, ...]:
    """Return the APIs that must be enabled for these settings."""
    of_tpu = [] if settings.is_compute else [TPU_API]
    apis = [*of_tpu, COMPUTE_API, STORAGE_API, IAM_API, PROJECTS_API]
    if settings.bucket.encryption is not None:
        apis.append(KMS_API)
    if settings.budget is not None:
        apis += [BILLING_API, BUDGETS_API]
    if settings.messages.any:
        apis.append(LOGGING_API)
    if settings.messages.any or (settings.budget and settings.budget.emails):
        apis.append(MONITORING_API)
    if settings.messages.pubsub_topic or (settings.budget and settings.budget.own_topic):
        apis.append(PUBSUB_API)
    if settings.jobs.apart:
        apis.append(CREDENTIALS_API)
    if settings.jobs.vertex is not None:
        apis.append(VERTEX_API)
    return tuple(apis)


# One call for each API. A disabled API refuses it before it looks at permissions.
_CALLS: Mapping[str, str] = {
    TPU_API: "https://tpu.googleapis.com/v2/projects/{project}/locations",
    COMPUTE_API: "https://compute.googleapis.com/compute/v1/projects/{project}",
    STORAGE_API: "https://storage.googleapis.com/storage/v1/b?project={project}&maxResults=1",
    IAM_API: "https://iam.googleapis.com/v1/projects/{project}/serviceAccounts",
    PROJECTS_API: "https://cloudresourcemanager.googleapis.com/v1/projects/{project}",
    KMS_API: "https://cloudkms.googleapis.com/v1/projects/{project}/locations/global/keyRings",
    BILLING_API: "https://cloudbilling.googleapis.com/v1/projects/{project}/billingInfo",
    BUDGETS_API: "https://billingbudgets.googleapis.com/v1/billingAccounts/"
    "000000-000000-000000/budgets",
    MONITORING_API: "https://monitoring.googleapis.com/v3/projects/{project}/notificationChannels",
    PUBSUB_API: "https://pubsub.googleapis.com/v1/projects/{project}/topics",
}
# Seconds between two calls, and in all; Google says "a few minutes".
_PAUSE, _LONGEST = 2.0, 300.0


def disabled(project: str, apis: Sequence[str]) -> list[str]:
    """Return those of `apis` that are disabled in the project; none if it has no credentials."""
    try:
        client = credentials.users_client()
        enabled = _enabled(client, project) if client else apis
    except Exception:  # No error of any kind may fail a preview.
        return []
    return [name for name in apis if name not in enabled]


def wait_until_it_answers(
    project: str,
    api: str,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a just-enabled API stops refusing calls as disabled.

    Google's provider takes an API for enabled once it is listed; calls are still refused for a
    while, and the provider does not repeat them. APIs that are not in `_CALLS` are not used at
    once.

    Raises:
        TimeoutError: when it takes longer than Google ever says.
    """
    if api not in _CALLS:
        return
    given = credentials.of_program()
    # No project is in its path, so the call has to say which one it counts against.
    if api == BUDGETS_API:
        given = replace(given, quota_project=project)
    client, end = credentials.client(given), clock() + _LONGEST
    while True:
        status, answer = client.call("GET", _CALLS[api].format(project=project), None)
        if status != 403 or "SERVICE_DISABLED" not in str(answer):
            return
        if clock() > end:
            raise TimeoutError(f"{api} is enabled in {project}, but still refuses calls")
        sleep(_PAUSE)


def _enabled(client: Client, project: str) -> set[str]:
    """Ask Google which APIs are enabled. Raises ApiError."""
    services = Api("https://serviceusage.googleapis.com/v1/", "Service Usage", client, connects=1)
    # The largest page that Google takes; a project has some hundred APIs at most.
    query = {"filter": "state:ENABLED", "pageSize": str(_PAGE)}
    found = services.list_all(f"projects/{project}", "services", **query)
    return {service["config"]["name"] for service in found}
