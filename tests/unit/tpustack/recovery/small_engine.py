"""A stand-in for Pulumi's engine: what it writes into its state, and when.

As pulumi/pkg 3.259 does it in backend/snapshot.go, resource/deploy/step.go and step_generator.go.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tpustack.recovery.state import id_of

State = dict[str, Any]
BUCKET, OBJECT = "gcp:storage/bucket:Bucket", "gcp:storage/bucketObject:BucketObject"
NETWORK, SUBNET = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
GRANT = "gcp:projects/iAMMember:IAMMember"
PROVIDER = "pulumi:providers:gcp"
# What has a fixed name goes before the new one comes; this goes after.
DELETED_LAST = GRANT
KINDS = (BUCKET, NETWORK, GRANT, OBJECT, SUBNET)
PARENTS = {SUBNET: NETWORK, OBJECT: BUCKET}


class KilledError(Exception):
    """The engine was killed."""


class ConflictError(Exception):
    """Google has something of that name already."""


def urn(kind: str, called: str) -> str:
    return f"urn:pulumi:dev::tpu-stack::{kind}::{called}"


def provider() -> State:
    return {"urn": urn(PROVIDER, "default"), "type": PROVIDER, "custom": True, "id": "1"}


def wanted(kind: str, called: str, name: str, label: str = "") -> State:
    """What a program asks for; what is in a bucket or network is in that of the same `called`."""
    places = {OBJECT: {"bucket": name}, SUBNET: {"region": "r"}, GRANT: {"role": "r"}}
    parent, name_of = PARENTS.get(kind), "member" if kind == GRANT else "name"
    return {
        "urn": urn(kind, called),
        "type": kind,
        "custom": True,
        "provider": f"{urn(PROVIDER, 'default')}::1",
        "inputs": {"project": "p", name_of: name, "label": label, **places.get(kind, {})},
        "dependencies": [urn(parent, called)] if parent else [],
    }


@dataclass
class SmallEngine:
    """One stack's state, and the IDs that the cloud has, with when they came.

    `moments` is how many moments it lives: after each it could be killed.
    """

    state: State = field(default_factory=lambda: {"resources": [provider()]})
    cloud: dict[str, str] = field(default_factory=dict)
    moments: float = float("inf")
    changes: int = 0
    seconds: int = 0

    def up(self, program: Sequence[State]) -> None:
        """Make the cloud what the program asks for: parents first, all of a kind side by side."""
        self._news: list[State] = []
        self._base: list[State] = copy.deepcopy(self.state["resources"])
        self._begun = self.state.get("pending_operations") or []
        self._operations: list[State] = []
        self.changes = 0
        asked = [copy.deepcopy(each) for each in program]
        self._keep(self._base[0], self._base[0])
        for kind in KINDS:
            creates = [each for new in asked if new["type"] == kind for each in self._steps(new)]
            for _, new in creates:
                self._operations.append({"type": "creating", "resource": new})
                self._save()
            for old, new in creates:
                self._create(old, new)
        seen = {each["urn"] for each in asked}
        gone = [each for each in self._base if each.get("delete") or each["urn"] not in seen]
        for each in sorted(gone, key=lambda each: each["type"] not in PARENTS):
            self._delete(each)
        self._save()

    def refresh(self, state: State) -> State:
        """The state without what the cloud does not have, and without references to that."""
        resources: list[State] = []
        for each in copy.deepcopy(state["resources"]):
            if each["id"] in self.cloud or each["type"] == PROVIDER or _only_a_place(each):
                urns = {known["urn"] for known in resources}
                needed = [name for name in each.get("dependencies", ()) if name in urns]
                outputs = {**each.get("outputs", {}), "timeCreated": self.cloud.get(each["id"])}
                resources.append({**each, "dependencies": needed, "outputs": outputs})
        return {**state, "resources": resources}

    def _steps(self, new: State) -> Iterator[tuple[State | None, State]]:
        """What is to be created, and in place of what; all else is done."""
        old = self._alive(new["urn"])
        if old is None or _only_a_place(old):
            yield old, new
        elif old["id"] != id_of(new):
            if new["type"] != DELETED_LAST:
                self._delete_first(old)
            yield old, new
        else:
            if old["inputs"] != new["inputs"]:
                self._change()
                self._operations.append({"type": "updating", "resource": new})
                self._save()
                self._operations.pop()
            self._keep(old, {**old, **new})

    def _delete_first(self, old: State) -> None:
        for each in [*self._dependents(old), old]:
            self._ask_to_delete(each)
            each["pendingReplacement"] = True
            self._operations.pop()
            self._save()

    def _dependents(self, old: State) -> list[State]:
        return [
            each
            for each in self._base
            if old["urn"] in each.get("dependencies", ())
            and not each.get("delete")
            and not _only_a_place(each)
        ]

    def _create(self, old: State | None, new: State) -> None:
        self._change()
        found = id_of(new)
        assert found
        if found in self.cloud:
            self._end(new)
            self._save()
            raise ConflictError(found)
        self._live()
        self.cloud[found] = self._now()
        self._live()
        if old and not _only_a_place(old):
            old["delete"] = True
            # Something else may be saved between this and the end of the step.
            self._save()
        self._end(new)
        made = {**new, "id": found, "outputs": new["inputs"], "created": self._now()}
        self._keep(old if old and _only_a_place(old) else None, made)
        self._save()

    def _end(self, new: State) -> None:
        self._operations = [each for each in self._operations if each["resource"] is not new]

    def _delete(self, old: State) -> None:
        if not _only_a_place(old):
            self._ask_to_delete(old)
            self._operations.pop()
        self._base = [each for each in self._base if each is not old]
        self._save()

    def _ask_to_delete(self, old: State) -> None:
        self._change()
        self._operations.append({"type": "deleting", "resource": old})
        self._save()
        self.cloud.pop(old["id"], None)
        self._live()

    def _keep(self, old: State | None, new: State) -> None:
        self._base = [each for each in self._base if each is not old]
        self._news.append(new)

    def _alive(self, name: str) -> State | None:
        alive = [each for each in self._base if each["urn"] == name and not each.get("delete")]
        return alive[0] if alive else None

    def _change(self) -> None:
        self.changes += 1

    def _save(self) -> None:
        kept = [each for each in self._begun if each["type"] == "creating"]
        self.state = copy.deepcopy(
            {
                "resources": [*self._news, *self._base],
                "pending_operations": [*self._operations, *kept],
            }
        )
        self._live()

    def _now(self) -> str:
        return f"{datetime(2026, 11, 21) + timedelta(seconds=self.seconds):%Y-%m-%dT%H:%M:%S.5Z}"

    def _live(self) -> None:
        self.moments -= 1
        self.seconds += 1
        if self.moments <= 0:
            raise KilledError


def _only_a_place(resource: State) -> bool:
    return bool(resource.get("pendingReplacement"))


def problems(state: State) -> list[str]:
    """Why the engine would not take a state, as its resource/stack/snapshot/integrity.go says."""
    found: list[str] = []
    before: dict[str, list[State]] = {}
    for each in state["resources"]:
        missing = [needed for needed in each.get("dependencies", ()) if needed not in before]
        found += [
            f"{each['urn']} depends on {needed}, which is not before it" for needed in missing
        ]
        before.setdefault(each["urn"], []).append(each)
    for name, same in before.items():
        if sum(not each.get("delete") for each in same) > 1:
            found.append(f"{name} is listed twice")
    return found
