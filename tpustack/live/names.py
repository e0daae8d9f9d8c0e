"""Questions about names that may be taken: the bucket's, which all of Google shares, and others."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from infra.apis import COMPUTE_API
from infra.names import Names
from tpustack.cloud.google import Forbidden, NotFound
from tpustack.live.finding import OK, WARNING, WRONG, Asked, Finding
from tpustack.live.project import is_enabled, not_enabled

_BUCKET = "https://storage.googleapis.com/storage/v1/b/{}"
_ACCOUNT = "https://iam.googleapis.com/v1/projects/{}/serviceAccounts/{}"
_NETWORK = "https://compute.googleapis.com/compute/v1/projects/{}/global/networks/{}"
_SUBNETWORK = "https://compute.googleapis.com/compute/v1/projects/{}/regions/{}/subnetworks/{}"
# Beside a stack that stands already this is what `pulumi up` finds, too.
_OWN = "If this stack stands already, it is its own; else set namePrefix"


def bucket(asked: Asked) -> Iterator[Finding]:
    """Ask whether the bucket's name is free, or its bucket the project's."""
    name = asked.context.names.bucket
    creates = asked.settings.bucket.create
    try:
        found = asked.google.get(_BUCKET.format(quote(name)), {"fields": "projectNumber"})
    except NotFound:
        if creates:
            yield Finding("bucket", OK, f"the name {name} is free")
        else:
            said = f"{name} does not exist, and bucket.create is false"
            yield Finding("bucket", WRONG, said, "Make it, or set bucket.name to another one")
        return
    except Forbidden:
        said = f"{name} is there, and you may not look at it: it is probably somebody else's"
        yield Finding("bucket", WRONG, said, "Set bucket.name or namePrefix to another name")
        return
    number = asked.record().get("projectNumber")
    if not creates:
        yield Finding("bucket", OK, f"{name} is there")
    elif str(found.get("projectNumber")) != str(number):
        said = f"{name} is there, in another project"
        yield Finding("bucket", WRONG, said, "Set bucket.name or namePrefix to another name")
    else:
        yield Finding("bucket", WARNING, f"{name} is there already", _OWN)


def account(asked: Asked) -> Iterator[Finding]:
    """Ask whether the names of the service accounts are free."""
    names = asked.context.names
    for name in (names.account, *([names.jobs_account] if asked.settings.jobs.apart else ())):
        try:
            email = Names.email_of(name, asked.project)
            asked.google.get(_ACCOUNT.format(asked.project, email))
        except NotFound:
            yield Finding("service account", OK, f"the name {name} is free")
        else:
            yield Finding("service account", WARNING, f"{name} is there already", _OWN)


def network(asked: Asked) -> Iterator[Finding]:
    """Ask whether a network that the stack does not make is there, with its subnetwork."""
    settings = asked.settings.network
    if settings.create:
        return
    if settings.project is None and not is_enabled(asked, COMPUTE_API):
        yield not_enabled("network", COMPUTE_API)
        return
    project = settings.project or asked.project
    name, subnetwork = settings.given_name, settings.given_subnetwork
    places = {
        f"network {name}": _NETWORK.format(project, name),
        f"subnetwork {subnetwork} in {asked.settings.region}": _SUBNETWORK.format(
            project, asked.settings.region, subnetwork
        ),
    }
    for what, url in places.items():
        try:
            asked.google.get(url, {"fields": "name"})
        except NotFound:
            said = f"{project} has no {what}, and network.create is false"
            cure = "Set network.create: true, or name another one"
            yield Finding("network", WRONG, said, cure)
            return
    yield Finding("network", OK, f"{project} has {' and '.join(places)}")
