"""Disabled Google APIs: a preview reports them, an update waits until they answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pulumi

from infra import apis, beside, credentials
from infra.apis import apis_of
from infra.settings import StackSettings

# Takes a while to load, for which only those who have credentials should wait.
if TYPE_CHECKING:
    import requests

_URL = "https://serviceusage.googleapis.com/v1/projects/{project}/services"
_SECONDS = 10.0
_PAGE = 200
# One call for each API. A disabled API refuses it before it looks at permissions.
_CALLS: Mapping[str, str] = {
    apis.TPU_API: "https://tpu.googleapis.com/v2/projects/{project}/locations",
    apis.COMPUTE_API: "https://compute.googleapis.com/compute/v1/projects/{project}",
    apis.STORAGE_API: "https://storage.googleapis.com/storage/v1/b?project={project}&maxResults=1",
    apis.IAM_API: "https://iam.googleapis.com/v1/projects/{project}/serviceAccounts",
    apis.PROJECTS_API: "https://cloudresourcemanager.googleapis.com/v1/projects/{project}",
    apis.KMS_API: "https://cloudkms.googleapis.com/v1/projects/{project}/locations/global/keyRings",
    apis.BILLING_API: "https://cloudbilling.googleapis.com/v1/projects/{project}/billingInfo",
    apis.BUDGETS_API: "https://billingbudgets.googleapis.com/v1/billingAccounts/"
    "000000-000000-000000/budgets",
    apis.MONITORING_API: "https://monitoring.googleapis.com/v3/projects/{project}/"
    "notificationChannels",
    apis.PUBSUB_API: "https://pubsub.googleapis.com/v1/projects/{project}/topics",
}
# Seconds between two calls, and in all; Google says "a few minutes".
_PAUSE, _LONGEST = 2.0, 300.0


def report(settings: StackSettings) -> None:
    """Say which APIs are disabled; the look-up runs beside the program.

    Without sufficient credentials it says nothing: the provider then says why.
    """
    beside.look(
        lambda: disabled(settings.project, apis_of(settings)),
        lambda names: _tell(names, settings),
    )


def disabled(project: str, apis: Sequence[str]) -> list[str]:
    """Return those of `apis` that the project has not enabled; none if nobody may look."""
    try:
        session = users_session()
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

    Args:
        project: the project in which it was enabled.
        api: its name.
        clock: seconds; tests have their own.
        sleep: waits for some seconds; tests have their own.

    Raises:
        TimeoutError: when it takes longer than Google ever says.
    """
    if api not in _CALLS:
        return
    session = credentials.session(credentials.of_program())
    if api == apis.BUDGETS_API:
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


def users_session() -> requests.Session | None:
    """Return a client as the provider is; None if the machine had to be asked, for seconds."""
    said = credentials.of_program()
    return credentials.session(said) if said.is_users else None


def _tell(names: Sequence[str], settings: StackSettings) -> None:
    if not names:
        return
    listed = ", ".join(names)
    if settings.enable_apis:
        pulumi.log.info(
            f"`pulumi up` enables these APIs in {settings.project}: {listed}. They stay enabled "
            "after `pulumi destroy`."
        )
    else:
        pulumi.log.warn(
            f"Disabled in {settings.project}, and enableApis is false: {listed}. Run "
            f"`gcloud services enable {' '.join(names)} --project {settings.project}`."
        )
