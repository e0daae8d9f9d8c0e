"""What requests' stacks leave at Google that can have no labels: accounts, networks, health checks.

Their descriptions say which stack of which backend made them (`infra.names.mark_of`), so that
nothing is touched that a stack of another backend made under the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone

from infra.names import MADE_FOR, mark_of
from tpustack.ci.orphans import COMPUTE, Json, Orphan, aggregated, at_api, listed, made
from tpustack.ci.requests import NAME
from tpustack.cloud.google import Google

# Google does not say when; the rest of its stack does.
_ACCOUNTS_MADE = datetime.min.replace(tzinfo=timezone.utc)
_IAM = "https://iam.googleapis.com/v1"
_MADE = re.compile(re.escape(MADE_FOR) + r"(?P<stack>\S+) \((?P<mark>[0-9a-f]+)\)")


def find(google: Google, project: str) -> Iterator[Orphan]:
    """Yield what carries the mark of a request's stack in this backend, in the order of deletion.

    What is still in use when its turn comes goes with a later run.
    """
    everywhere = f"{COMPUTE}/projects/{project}/global"
    for check in listed(google, f"{everywhere}/healthChecks", "items"):
        if stack := _stack_of(check):
            link = at_api(check["selfLink"])
            yield Orphan(stack, f"health check {check['name']}", link, made(check))
    for network in listed(google, f"{everywhere}/networks", "items"):
        if stack := _stack_of(network):
            yield from _network(google, project, stack, network)
    url = f"{_IAM}/projects/{project}/serviceAccounts"
    for account in listed(google, url, "accounts"):
        if stack := _stack_of(account):
            link = f"{_IAM}/{account['name']}"
            yield Orphan(stack, f"account {account['email']}", link, _ACCOUNTS_MADE)


def _network(google: Google, project: str, stack: str, network: Json) -> Iterator[Orphan]:
    """Yield what is in a network, and the network last."""
    firewalls = f"{COMPUTE}/projects/{project}/global/firewalls"
    parts = {
        "firewall rule": listed(google, firewalls, "items"),
        "router": aggregated(google, project, "routers"),
        "subnetwork": aggregated(google, project, "subnetworks"),
    }
    for what, found in parts.items():
        for part in found:
            if at_api(part["network"]) == at_api(network["selfLink"]):
                link = at_api(part["selfLink"])
                yield Orphan(stack, f"{what} {part['name']}", link, made(part))
    yield Orphan(stack, f"network {network['name']}", at_api(network["selfLink"]), made(network))


def _stack_of(resource: Json) -> str:
    """Return the request's stack that made a resource; empty if none of this backend did."""
    made = _MADE.fullmatch(resource.get("description") or "")
    ours = made and NAME.fullmatch(made["stack"]) and made["mark"] == mark_of(made["stack"])
    return made["stack"] if made and ours else ""
