"""Findings about the project: its existence, billing, APIs, permissions, and names in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from infra.apis import COMPUTE_API, apis_of
from infra.checks.context import Context
from infra.deployer import permissions_of
from infra.names import Names
from infra.settings import StackSettings
from tpustack.cloud.google import Forbidden, Google, NotFound, says_disabled
from tpustack.errors import TpustackError

_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}"
OK = "ok"
WARNING = "warning"
WRONG = "wrong"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        about: what was asked about, such as `quota`.
        state: `ok`, `warning`, `wrong` (`pulumi up` would fail) or `unknown` (Google did not say).
        said: what was found.
        cure: what to do; empty if all is fine.
    """

    about: str
    state: str
    said: str
    cure: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding for programs."""
        return asdict(self)


@dataclass(frozen=True)
class Target:
    """Google, and the stack that it is asked about. Each address is read once."""

    google: Google
    settings: StackSettings
    context: Context
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def project(self) -> str:
        """The project that the stack is in."""
        return self.settings.project

    def look(self, url: str) -> dict[str, Any]:
        """Return what is at `url`; several questions need it."""
        if url not in self._known:
            self._known[url] = self.google.get(url)
        return self._known[url]

    def record(self) -> dict[str, Any]:
        """Return Google's record of the project."""
        return self.look(_PROJECT.format(self.project))


Question = Callable[[Target], Iterator[Finding]]


def _refused(about: str, error: Forbidden, project: str) -> Finding:
    """Return why Google refused a question: its API is off, or the caller may not ask it."""
    api = urlsplit(str(error).partition(" ")[0]).hostname
    if says_disabled(error) and api:
        said = f"cannot be asked before {api} is enabled"
        return Finding(about, WARNING, said, f"`gcloud services enable {api} --project {project}`")
    return Finding(about, UNKNOWN, str(error), "Ask someone with access to look")


def answers(about: str, question: Question, target: Target) -> list[Finding]:
    """Return the findings of a question; if Google does not answer, one that says why."""
    found: list[Finding] = []
    try:
        found.extend(question(target))
    except Forbidden as error:
        found.append(_refused(about, error, target.project))
    except TpustackError as error:
        found.append(Finding(about, UNKNOWN, str(error), "Try again"))
    return found


_BILLING = "https://cloudbilling.googleapis.com/v1/projects/{}/billingInfo"
_SERVICES = "https://serviceusage.googleapis.com/v1/projects/{}/services"


def project(target: Target) -> Iterator[Finding]:
    """Ask whether the project is there and active."""
    try:
        state = target.record().get("lifecycleState")
    except NotFound:
        state = None
    if state == "ACTIVE":
        yield Finding("project", OK, f"{target.project} is active")
    else:
        said = f"is {state}" if state else "does not exist"
        yield Finding(
            "project", WRONG, f"{target.project} {said}", "Set gcp:project to another one"
        )


def billing(target: Target) -> Iterator[Finding]:
    """Ask whether the project has billing enabled."""
    info = target.google.get(_BILLING.format(target.project))
    if info.get("billingEnabled"):
        yield Finding("billing", OK, f"{info['billingAccountName']} pays")
        return
    yield Finding(
        "billing",
        WRONG,
        "billing is off: Google creates no machine in the project",
        f"`gcloud billing projects link {target.project} --billing-account ACCOUNT`",
    )


def apis(target: Target) -> Iterator[Finding]:
    """Ask which of the stack's APIs are disabled."""
    url = _SERVICES.format(target.project)
    query: dict[str, str | int] = {"filter": "state:ENABLED", "pageSize": 200}
    enabled = {s["config"]["name"] for s in target.google.pages(url, "services", query)}
    missing = [api for api in apis_of(target.settings) if api not in enabled]
    if not missing:
        yield Finding("APIs", OK, "all are enabled")
    elif target.settings.enable_apis:
        yield Finding("APIs", OK, f"pulumi up enables {', '.join(missing)}")
    else:
        yield Finding(
            "APIs",
            WRONG,
            f"disabled, and enableApis is false: {', '.join(missing)}",
            f"`gcloud services enable {' '.join(missing)} --project {target.project}`",
        )


def is_enabled(target: Target, api: str) -> bool:
    """Return whether an API answers in the project."""
    return target.look(f"{_SERVICES.format(target.project)}/{api}").get("state") == "ENABLED"


def not_enabled(about: str, api: str) -> Finding:
    """Return why a question cannot be asked yet."""
    return Finding(
        about, WARNING, f"cannot be asked before {api} is enabled", "Ask again after that"
    )


def needs(api: str, about: str) -> Callable[[Question], Question]:
    """Ask a question only if an API answers in the project."""

    def decorate(question: Question) -> Question:
        def ask(target: Target) -> Iterator[Finding]:
            if is_enabled(target, api):
                yield from question(target)
            else:
                yield not_enabled(about, api)

        return ask

    return decorate


_PROJECT_PERMISSIONS = (
    "https://cloudresourcemanager.googleapis.com/v1/projects/{}:testIamPermissions"
)
_BILLING_PERMISSIONS = (
    "https://cloudbilling.googleapis.com/v1/billingAccounts/{}:testIamPermissions"
)
# How many permissions one call may name.
_MOST = 100
_SHOWN = 6


def permissions(target: Target) -> Iterator[Finding]:
    """Ask for exactly the permissions that `tpustack permissions` lists."""
    needed = permissions_of(target.settings)
    yield _found(
        target, _PROJECT_PERMISSIONS.format(target.project), needed.of_project(), "in the project"
    )
    budget = target.settings.budget
    if budget is not None and budget.billing_account:
        url = _BILLING_PERMISSIONS.format(budget.billing_account)
        yield _found(target, url, needed.of_billing_account(), "on the billing account")


def _found(target: Target, url: str, needed: list[str], where: str) -> Finding:
    missing = sorted(set(needed) - set(_granted(target, url, needed)))
    if not missing:
        return Finding("permissions", OK, f"all {len(needed)} {where}")
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return Finding(
        "permissions",
        WRONG,
        f"{len(missing)} of {len(needed)} are missing {where}: {', '.join(missing[:_SHOWN])}{more}",
        f"Get the role that `tpustack permissions --stack {target.context.stack}` writes",
    )


def _granted(target: Target, url: str, needed: list[str]) -> Iterable[str]:
    for first in range(0, len(needed), _MOST):
        body = {"permissions": needed[first : first + _MOST]}
        yield from target.google.ask(url, body).get("permissions", [])


_BUCKET = "https://storage.googleapis.com/storage/v1/b/{}"
_ACCOUNT = "https://iam.googleapis.com/v1/projects/{}/serviceAccounts/{}"
_NETWORK = "https://compute.googleapis.com/compute/v1/projects/{}/global/networks/{}"
_SUBNETWORK = "https://compute.googleapis.com/compute/v1/projects/{}/regions/{}/subnetworks/{}"
# The same is found for a stack that is up already.
_OWN = "If this stack is up already, it is its own; else set namePrefix"


def bucket(target: Target) -> Iterator[Finding]:
    """Ask whether the bucket's name is free, or its bucket the project's."""
    name = target.context.names.bucket
    creates = target.settings.bucket.create
    try:
        found = target.google.get(_BUCKET.format(quote(name)), {"fields": "projectNumber"})
    except NotFound:
        if creates:
            yield Finding("bucket", OK, f"the name {name} is free")
        else:
            said = f"{name} does not exist, and bucket.create is false"
            yield Finding("bucket", WRONG, said, "Make it, or set bucket.name to another one")
        return
    except Forbidden:
        said = f"{name} is there, and you may not look at it: it is probably not yours"
        yield Finding("bucket", WRONG, said, "Set bucket.name or namePrefix to another name")
        return
    number = target.record().get("projectNumber")
    if not creates:
        yield Finding("bucket", OK, f"{name} is there")
    elif str(found.get("projectNumber")) != str(number):
        said = f"{name} is there, in another project"
        yield Finding("bucket", WRONG, said, "Set bucket.name or namePrefix to another name")
    else:
        yield Finding("bucket", WARNING, f"{name} is there already", _OWN)


def account(target: Target) -> Iterator[Finding]:
    """Ask whether the names of the service accounts are free."""
    names = target.context.names
    for name in (names.account, *([names.jobs_account] if target.settings.jobs.apart else ())):
        try:
            email = Names.email_of(name, target.project)
            target.google.get(_ACCOUNT.format(target.project, email))
        except NotFound:
            yield Finding("service account", OK, f"the name {name} is free")
        else:
            yield Finding("service account", WARNING, f"{name} is there already", _OWN)


def network(target: Target) -> Iterator[Finding]:
    """Ask whether a network that the stack does not make is there, with its subnetwork."""
    settings = target.settings.network
    if settings.create:
        return
    if settings.project is None and not is_enabled(target, COMPUTE_API):
        yield not_enabled("network", COMPUTE_API)
        return
    project = settings.project or target.project
    name, subnetwork = settings.given_name, settings.given_subnetwork
    places = {
        f"network {name}": _NETWORK.format(project, name),
        f"subnetwork {subnetwork} in {target.settings.region}": _SUBNETWORK.format(
            project, target.settings.region, subnetwork
        ),
    }
    for what, url in places.items():
        try:
            target.google.get(url, {"fields": "name"})
        except NotFound:
            said = f"{project} has no {what}, and network.create is false"
            cure = "Set network.create: true, or name another one"
            yield Finding("network", WRONG, said, cure)
            return
    yield Finding("network", OK, f"{project} has {' and '.join(places)}")


CURE = (
    "Reserve a range and connect it to servicenetworking.googleapis.com (docs/vertex.md), or leave "
    "jobs.vertex.network out: jobs need it for private addresses alone"
)
_NAME, _ACTIVE = "servicenetworking-googleapis-com", "ACTIVE"
_COMPUTE = "https://compute.googleapis.com/compute/v1"


def why_not_peered(google: Google, network: str) -> str:
    """Return why Vertex AI can't use `projects/NUMBER/global/networks/NAME`; empty if it can.

    It needs a peering with Google's services. A stack does not create it: Vertex AI has one network
    a region and project, other services have addresses of the same range, and Google refuses to
    delete it while any of them has. Source: "Set up VPC Network Peering",
    docs.cloud.google.com/vertex-ai/docs/general/vpc-peering.

    Raises:
        TpustackError: the caller may not look.
    """
    try:
        found = google.get(f"{_COMPUTE}/{network}", {"fields": "peerings(name,state)"})
    except NotFound:
        return f"there is no {network}"
    states = {one["name"]: one.get("state") for one in found.get("peerings", ())}
    if _NAME not in states:
        return f"{network} has no peering {_NAME}"
    if states[_NAME] != _ACTIVE:
        return f"the peering {_NAME} of {network} is {states[_NAME]}, not {_ACTIVE}"
    return ""


def peering(target: Target) -> Iterator[Finding]:
    """Ask whether the network that jobs on Vertex AI are to reach is peered with it."""
    vertex = target.settings.jobs.vertex
    if vertex is None or vertex.network is None:
        return
    why = why_not_peered(target.google, vertex.network)
    if why:
        yield Finding("peering", WRONG, f"jobs.vertex.network: {why}", CURE)
    else:
        yield Finding("peering", OK, f"{vertex.network} is peered with Google's services")
