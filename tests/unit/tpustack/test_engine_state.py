"""What a killed engine was creating is looked for under the name that Google has it by."""

from __future__ import annotations

from typing import Any

from tpustack.engine_state import being_created, settled, with_what_was_being_created


def resource(kind: str, called: str, **inputs: str) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:local::tpu-stack::{kind}::{called}", "type": kind, "inputs": inputs}


NETWORK = resource("gcp:compute/network:Network", "network", project="p", name="net")
TPU = resource("gcp:tpu/v2Vm:V2Vm", "tpu", project="p", zone="us-central1-b", name="tpu")
GRANT = resource("gcp:projects/iAMMember:IAMMember", "viewer", project="p", role="r")


def state(there: list[dict[str, Any]], **pending: dict[str, Any]) -> dict[str, Any]:
    operations = [{"type": kind, "resource": what} for kind, what in pending.items()]
    return {"resources": there, "pending_operations": operations}


def test_what_cannot_be_created_twice_is_looked_for() -> None:
    before = state([NETWORK | {"id": "n"}], creating=TPU)
    after = with_what_was_being_created(before)
    assert [found.get("id") for found in after["resources"]] == [
        "n",
        "projects/p/locations/us-central1-b/nodes/tpu",
    ]
    assert being_created(before) == [TPU["urn"]]
    assert settled(after)["pending_operations"] == []


def test_what_can_be_created_twice_is_simply_created_again() -> None:
    assert with_what_was_being_created(state([], creating=GRANT))["resources"] == []


def test_what_the_state_knows_already_is_not_there_twice() -> None:
    known = NETWORK | {"id": "n"}
    assert with_what_was_being_created(state([known], creating=NETWORK))["resources"] == [known]


def test_a_replacement_takes_the_place_of_what_was_deleted_for_it() -> None:
    deleted = NETWORK | {"id": "old", "pendingReplacement": True}
    after = with_what_was_being_created(state([deleted, GRANT], creating=NETWORK))
    found = NETWORK | {"id": "projects/p/global/networks/net", "outputs": NETWORK["inputs"]}
    assert after["resources"] == [found, GRANT]


def test_what_is_made_before_the_old_one_goes_is_looked_for_and_the_old_one_goes_next() -> None:
    old = NETWORK | {"id": "old", "inputs": {"project": "p", "name": "old"}}
    after = with_what_was_being_created(state([old, GRANT], creating=NETWORK))
    found = NETWORK | {"id": "projects/p/global/networks/net", "outputs": NETWORK["inputs"]}
    assert after["resources"] == [found, old | {"delete": True}, GRANT]
    assert with_what_was_being_created(after) == after
    assert settled(after)["resources"] == after["resources"]


def test_what_was_not_replaced_after_all_stays() -> None:
    old = NETWORK | {"id": "old", "inputs": {"project": "p", "name": "old"}}
    refreshed = state([old | {"delete": True}, GRANT], creating=NETWORK)
    assert settled(refreshed)["resources"] == [old, GRANT]


def test_interrupted_updates_and_deletions_are_left_to_the_refresh() -> None:
    known = NETWORK | {"id": "n"}
    before = state([known], deleting=known)
    assert being_created(before) == []
    assert with_what_was_being_created(before)["resources"] == [known]


def test_a_state_with_nothing_in_it_has_nothing_pending() -> None:
    assert being_created({}) == []
