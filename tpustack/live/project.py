"""Questions about the project: whether it is there, who pays, which APIs are on."""

from __future__ import annotations

from collections.abc import Iterator

from infra.apis import apis_of
from tpustack.cloud.google import NotFound
from tpustack.live.finding import OK, WARNING, WRONG, Asked, Finding

_BILLING = "https://cloudbilling.googleapis.com/v1/projects/{}/billingInfo"
_SERVICES = "https://serviceusage.googleapis.com/v1/projects/{}/services"


def project(asked: Asked) -> Iterator[Finding]:
    """Ask whether the project is there and active."""
    try:
        state = asked.record().get("lifecycleState")
    except NotFound:
        state = None
    if state == "ACTIVE":
        yield Finding("project", OK, f"{asked.project} is active")
    else:
        said = f"is {state}" if state else "does not exist"
        yield Finding("project", WRONG, f"{asked.project} {said}", "Set gcp:project to another one")


def billing(asked: Asked) -> Iterator[Finding]:
    """Ask whether somebody pays for the project."""
    info = asked.google.get(_BILLING.format(asked.project))
    if info.get("billingEnabled"):
        yield Finding("billing", OK, f"{info['billingAccountName']} pays")
        return
    yield Finding(
        "billing",
        WRONG,
        "nobody pays for the project: Google makes no machine in it",
        f"`gcloud billing projects link {asked.project} --billing-account ACCOUNT`",
    )


def apis(asked: Asked) -> Iterator[Finding]:
    """Ask which of the stack's APIs are disabled."""
    url = _SERVICES.format(asked.project)
    query: dict[str, str | int] = {"filter": "state:ENABLED", "pageSize": 200}
    enabled = {s["config"]["name"] for s in asked.google.pages(url, "services", query)}
    missing = [api for api in apis_of(asked.settings) if api not in enabled]
    if not missing:
        yield Finding("APIs", OK, "all are enabled")
    elif asked.settings.enable_apis:
        yield Finding("APIs", OK, f"pulumi up enables {', '.join(missing)}")
    else:
        yield Finding(
            "APIs",
            WRONG,
            f"disabled, and enableApis is false: {', '.join(missing)}",
            f"`gcloud services enable {' '.join(missing)} --project {asked.project}`",
        )


def is_enabled(asked: Asked, api: str) -> bool:
    """Return whether an API answers in the project."""
    return asked.look(f"{_SERVICES.format(asked.project)}/{api}").get("state") == "ENABLED"


def not_enabled(about: str, api: str) -> Finding:
    """Return why a question cannot be asked yet."""
    return Finding(
        about, WARNING, f"cannot be asked before {api} is enabled", "Ask again after that"
    )
