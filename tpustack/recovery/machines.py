"""Machines of Compute Engine that Google has taken, or that have lived as long as they may.

Google ends a machine when its own time is up. A replacement has a time of its own, so what all of
them together live is counted here, in the record that the agent has of other TPUs.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_core.compute import GROUPS, INSTANCE, Ask, lacking, phase_of, template
from tpu_core.google import Json
from tpu_core.memory import Memory, birth
from tpu_core.times import in_utc, seconds
from tpu_core.tpu import Seen
from tpu_infra.names import names_of
from tpu_infra.settings import StackSettings
from tpustack.cloud.google import Google, NotFound
from tpustack.errors import TpustackError

_VM = "gcp:compute/instance:Instance"
_GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"


def lost_vms(google: Google, resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the URNs of the VMs in a stack's state that Google has taken away, with their states.

    A machine with a TPU is one of them.
    An instance group brings its VM back; a VM that is not preemptible was stopped on purpose.
    Raises TpustackError when the caller may not look.
    """
    found = {}
    for resource in resources:
        vm = resource.get("outputs") or {}
        if resource["type"] != _VM or not (vm.get("scheduling") or {}).get("preemptible"):
            continue
        try:
            state = google.get(INSTANCE.format(vm["project"], vm["zone"], vm["name"]))["status"]
        except NotFound:
            state = "gone"
        if state == "gone" or phase_of(state) == "lost":
            found[resource["urn"]] = state
    return found


def lost_slices(google: Google, resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the URNs of the groups in a stack's state that are slices lost for good.

    Raises TpustackError when the caller may not look.
    """
    found = {}
    for resource in resources:
        declared = resource.get("outputs") or {}
        if resource["type"] != _GROUP or not declared.get("targetSizePolicies"):
            continue
        url = GROUPS.format(declared["project"], declared["zone"], declared["name"])
        try:
            lacks = lacking(_asking(google), declared["project"], url, google.get(url))
        except NotFound:
            lacks = "gone"
        if lacks:
            found[resource["urn"]] = lacks
    return found


def _asking(google: Google) -> Ask:
    return lambda url, body: google.get(url) if body is None else google.post(url, body)


# How long they live.

_TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
# Whose a resource is; infra/tpu_infra/checks writes it.
_LABEL = "tpu-stack"
_ADDRESSES = {_GROUP: GROUPS, _VM: INSTANCE}
# Seconds from a recovery's note until Google has begun to create. What came later, a person made.
_RENEWAL = 3600.0


class Lives:
    """How long a stack's machines may still be replaced, by what its state declares of them."""

    def __init__(
        self,
        google: Google,
        bucket: str,
        resources: Sequence[Mapping[str, Any]],
        say: Callable[[str], None],
    ) -> None:
        self._google, self._say = google, say
        self._known = {one["urn"]: one for one in resources}
        declared = [
            (one.get("outputs") or {}).get("scheduling") or {}
            for one in resources
            if one["type"] in (_VM, _TEMPLATE)
        ]
        runs = [each["maxRunDuration"] for each in declared if each.get("maxRunDuration")]
        self._hours = int(runs[0]["seconds"]) / 3600 if runs else None
        self._memory = Memory(Bucket(bucket, google.exchange), time.time, say)

    def left(self, lost: dict[str, str]) -> dict[str, str]:
        """Return those of the lost that may be recreated, after a note of when their life began.

        Raises TpustackError if the bucket does not answer: nothing is recreated without it.
        """
        return {urn: state for urn, state in lost.items() if not self._hours or self._goes_on(urn)}

    def _goes_on(self, urn: str) -> bool:
        declared, hours, now = self._known[urn]["outputs"], self._hours or 0.0, time.time()
        name, seen = declared["name"], _seen(declared)
        with _explained():
            if _is_anothers(self._memory.remaking.get(name), declared):
                self._memory.forget(name)
            self._memory.ready(name, seen)
            entry = self._memory.entry(name, seen, "", "lost")
            if now >= entry["born"] + hours * 3600:
                self._say(f"The TPU {name} is not recreated: its {hours:g} hours are over.")
                return False
            self._memory.remaking[name] = {**entry, "made": now}
            self._memory.save()
        return True

    def note(self, urns: Iterable[str]) -> None:
        """Note that what was recreated lives on; what is killed here does the next recovery."""
        for urn in urns if self._hours else ():
            declared = self._known[urn]["outputs"]
            address = _ADDRESSES[self._known[urn]["type"]]
            place = (declared["project"], declared["zone"], declared["name"])
            found = self._google.get(address.format(*place))
            with _explained():
                self._memory.ready(declared["name"], _seen(found))


def end_machines(
    google: Google, settings: StackSettings, stack: str, say: Callable[[str], None]
) -> None:
    """Delete a TPU on Compute Engine whose time is up, and what is left of a slice.

    No machine of a spot slice replaces another, and those that are left cost money for nothing.
    Raises TpustackError if Google refuses, or if the TPU is another stack's.
    """
    names = names_of(settings, stack)
    name, bucket = names.tpu, names.bucket
    hours, ask = settings.limits.time_to_live_hours, _asking(google)
    for address in _ADDRESSES.values():
        url = address.format(settings.project, settings.zone, name)
        with suppress(NotFound):  # Someone may also be faster.
            found = google.get(url)
            # Its age alone is enough, whatever else Google does not answer.
            if hours and _born(google, bucket, name, found, say) + hours * 3600 <= time.time():
                why = f"its {hours:g} hours are over"
            elif address is GROUPS and (lacks := lacking(ask, settings.project, url, found)):
                why = f"it is {lacks}"
            else:
                continue
            _require_own(google, settings, stack, found)
            google.delete(url)
            say(f"{name} is deleted: {why}")


def _require_own(
    google: Google, settings: StackSettings, stack: str, found: Mapping[str, Any]
) -> None:
    """Raise TpustackError if a machine or a group is not this stack's, by its label.

    A group has no labels; its template has those of its machines.
    """
    if "instanceTemplate" in found:
        found = template(_asking(google), settings.project, found)
    require_label(names_of(settings, stack).tpu, settings.zone, stack, found)


def require_label(name: str, zone: str, stack: str, found: Mapping[str, Any]) -> None:
    """Raise TpustackError if a resource isn't labelled as this stack's."""
    if found.get("labels", {}).get(_LABEL) != stack:
        raise TpustackError(
            f"{name} in {zone} isn't labelled {_LABEL}={stack}, so it is not deleted. "
            "If it is another stack's, set namePrefix in this one's file"
        )


def _born(
    google: Google, bucket: str, name: str, found: Mapping[str, Any], say: Callable[[str], None]
) -> float:
    """Return when the life of the first began that a TPU replaces, in seconds since the epoch."""
    state: Json = {}
    try:
        state = Bucket(bucket, google.exchange).read_json(paths.STATE)[0] or {}
        if _is_anothers((state.get("remaking") or {}).get(name), found):
            del state["remaking"][name]
    except Exception as error:  # No object in a bucket ends a limit: its own age counts.
        say(f"the age of {name} could not be updated: {error}")
    return birth(state, name, {"createTime": in_utc(found["creationTimestamp"])})


def _is_anothers(entry: Json | None, found: Mapping[str, Any]) -> bool:
    """Return whether what was found came too late to be what a recovery noted before it failed."""
    made: float | None = entry["made"] if entry else None
    return made is not None and seconds(in_utc(found["creationTimestamp"])) > made + _RENEWAL


def _seen(resource: Mapping[str, Any]) -> Seen:
    created = in_utc(resource["creationTimestamp"])
    return Seen("ready", "", "preemption", created, {}, ({"createTime": created},), "", "")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TpustackError(f"the lifetime of the TPU, in the bucket: {error}") from None
