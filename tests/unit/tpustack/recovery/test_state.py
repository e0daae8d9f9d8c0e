"""What a killed engine left half done is looked for under the name that Google has it by."""

from __future__ import annotations

from typing import Any

import pytest

from tpustack.recovery.state import being_created, passing, settled, with_what_may_be_there


def resource(kind: str, called: str, **inputs: str) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:local::tpu-stack::{kind}::{called}", "type": kind, "inputs": inputs}


NETWORK = resource("gcp:compute/network:Network", "network", project="p", name="net")
TPU = resource("gcp:tpu/v2Vm:V2Vm", "tpu", project="p", zone="us-central1-b", name="tpu")
API = resource("gcp:projects/service:Service", "tpu-api", project="p", service="tpu")


def state(there: list[dict[str, Any]], **pending: dict[str, Any]) -> dict[str, Any]:
    operations = [{"type": kind, "resource": what} for kind, what in pending.items()]
    return {"resources": there, "pending_operations": operations}


def test_resources_with_a_known_id_are_looked_up() -> None:
    before = state([NETWORK | {"id": "n"}], creating=TPU)
    after = with_what_may_be_there(before)
    assert [found.get("id") for found in after["resources"]] == [
        "n",
        "projects/p/locations/us-central1-b/nodes/tpu",
    ]
    assert being_created(before) == [TPU["urn"]]
    assert settled(before, after)["pending_operations"] == []


def test_resources_without_a_known_id_are_created_again() -> None:
    assert with_what_may_be_there(state([], creating=API))["resources"] == []


def test_a_resource_already_in_the_state_is_not_added_twice() -> None:
    known = NETWORK | {"id": "n"}
    assert with_what_may_be_there(state([known], creating=NETWORK))["resources"] == [known]


def test_a_replacement_takes_the_place_of_what_was_deleted_for_it() -> None:
    deleted = NETWORK | {"id": "old", "pendingReplacement": True}
    after = with_what_may_be_there(state([deleted, API], creating=NETWORK))
    found = NETWORK | {"id": "projects/p/global/networks/net", "outputs": NETWORK["inputs"]}
    assert after["resources"] == [found, API]


def test_create_before_delete_keeps_the_new_resource_and_deletes_the_old() -> None:
    old = NETWORK | {"id": "old", "inputs": {"project": "p", "name": "old"}}
    before = state([old, API], creating=NETWORK)
    after = with_what_may_be_there(before)
    found = NETWORK | {"id": "projects/p/global/networks/net", "outputs": NETWORK["inputs"]}
    assert after["resources"] == [found, old | {"delete": True}, API]
    assert settled(before, after)["resources"] == after["resources"]


def test_a_resource_whose_replacement_never_came_is_kept() -> None:
    old = NETWORK | {"id": "old", "inputs": {"project": "p", "name": "old"}}
    before = state([old, API], creating=NETWORK)
    refreshed = state([old | {"delete": True}, API])
    assert settled(before, refreshed)["resources"] == [old, API]


def test_of_two_that_were_interrupted_the_later_one_stays_and_the_earlier_one_goes() -> None:
    earlier = NETWORK | {"inputs": {"project": "p", "name": "first"}}
    # The engine hands an operation on to the next update, behind that one's own.
    operations = [{"type": "creating", "resource": each} for each in (NETWORK, earlier)]
    after = with_what_may_be_there({"resources": [], "pending_operations": operations})
    assert [(each["inputs"]["name"], each.get("delete")) for each in after["resources"]] == [
        ("net", None),
        ("first", True),
    ]


def test_the_earlier_one_stays_when_the_later_one_did_not_come() -> None:
    earlier = NETWORK | {"id": "first", "inputs": {"project": "p", "name": "first"}}
    operations = [{"type": "creating", "resource": each} for each in (NETWORK, earlier)]
    before = {"resources": [API], "pending_operations": operations}
    refreshed = state([API, earlier | {"delete": True}])
    assert settled(before, refreshed)["resources"] == [API, earlier]


def test_only_the_one_that_was_replaced_last_stays_when_its_replacement_did_not_come() -> None:
    older = NETWORK | {"id": "older", "delete": True}
    old = NETWORK | {"id": "old", "inputs": {"project": "p", "name": "old"}}
    before = state([old, older], creating=NETWORK)
    refreshed = state([old | {"delete": True}, older])
    assert settled(before, refreshed)["resources"] == [old, older]


@pytest.mark.parametrize(
    ("made", "stays"),
    [("2026-11-21T02:00:00.123-08:00", "net"), ("2026-11-21T09:59:59Z", "old"), (None, "net")],
)
def test_a_resource_older_than_its_predecessor_is_a_leftover(made: str | None, stays: str) -> None:
    old = NETWORK | {
        "id": "old",
        "inputs": {"project": "p", "name": "old"},
        "created": "2026-11-21T10:00:00.123456789Z",
    }
    new = NETWORK | {"id": "projects/p/global/networks/net", "outputs": {"creationTimestamp": made}}
    before = state([old], creating=NETWORK)
    kept = settled(before, state([new, old | {"delete": True}]))["resources"]
    alive = [each["inputs"]["name"] for each in kept if not each.get("delete")]
    assert (len(kept), alive) == (2, [stays])


def test_dependencies_deleted_in_between_are_dropped() -> None:
    provider = {
        "urn": "urn:pulumi:local::p::pulumi:providers:gcp::g",
        "type": "provider",
        "id": "2",
    }
    new = TPU | {
        "provider": f"{provider['urn']}::1",
        "parent": "gone",
        "deletedWith": "gone",
        "dependencies": [NETWORK["urn"], "gone"],
        "propertyDependencies": {"network": [NETWORK["urn"]], "zone": ["gone"]},
    }
    found = with_what_may_be_there(state([provider, NETWORK], creating=new))["resources"][2]
    assert found["provider"] == f"{provider['urn']}::2"
    assert found["dependencies"] == [NETWORK["urn"]]
    assert found["propertyDependencies"] == {"network": [NETWORK["urn"]], "zone": []}
    assert not {"parent", "deletedWith"} & found.keys()
    assert with_what_may_be_there(state([], creating=new))["resources"] == []


def test_resources_in_transition_are_waited_for() -> None:
    coming, there = ({"outputs": {"state": name}} for name in ("CREATING", "READY"))
    assert passing(state([], creating=TPU), state([TPU | coming])) == [TPU["urn"]]
    assert passing(state([], creating=TPU), state([TPU | there])) == []
    assert passing(state([]), state([TPU | coming])) == []
    vm = {"urn": "urn:vm", "type": "gcp:compute/instance:Instance"}
    waits = vm | {"outputs": {"currentStatus": "PENDING"}}
    assert passing(state([], creating=vm), state([waits])) == ["urn:vm"]


def test_interrupted_updates_and_deletions_are_left_to_the_refresh() -> None:
    known = NETWORK | {"id": "n"}
    before = state([known], deleting=known)
    assert being_created(before) == []
    assert with_what_may_be_there(before)["resources"] == [known]


def test_a_state_with_nothing_in_it_has_nothing_pending() -> None:
    assert being_created({}) == []
