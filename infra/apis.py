"""The Google APIs that a stack needs, which are disabled, and when a new one answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from infra import credentials
from infra.settings import StackSettings

if TYPE_CHECKING:
    import requests


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
    apis = [TPU_API, COMPUTE_API, STORAGE_API, IAM_API, PROJECTS_API]
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


_URL = "https://serviceusage.googleapis.com/v1/projects/{project}/services"
_SECONDS = 10.0
_PAGE = 200
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
        session = credentials.users_session()
        enabled = _enabled(session, project) if session else None
    except Exception:  # No error of any kind may fail a preview.
        return []
    return [] if enabled is None else [name for name in apis if name not in enabled]


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
    session = credentials.session(credentials.of_program())
    if api == BUDGETS_API:
        session.headers[credentials.QUOTA_PROJECT] = project
    end = clock() + _LONGEST
    while _is_refused(session.get(_CALLS[api].format(project=project), timeout=_SECONDS)):
        if clock() > end:
            raise TimeoutError(f"{api} is enabled in {project}, but still refuses calls")
        sleep(_PAUSE)


def _is_refused(answer: requests.Response) -> bool:
    return answer.status_code == 403 and "SERVICE_DISABLED" in answer.text


def _enabled(session: requests.Session, project: str) -> set[str]:
    """Ask Google which APIs are enabled. Raises requests.RequestException."""
    found: set[str] = set()
    query: dict[str, Any] = {"filter": "state:ENABLED", "pageSize": _PAGE}
    while True:
        answer = session.get(_URL.format(project=project), params=query, timeout=_SECONDS)
        answer.raise_for_status()
        page = answer.json()
        found |= {service["config"]["name"] for service in page.get("services", [])}
        if not page.get("nextPageToken"):
            return found
        query["pageToken"] = page["nextPageToken"]
