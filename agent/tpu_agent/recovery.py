"""Recreates a TPU that Google has taken away, or that no longer works.

Each look does one step for each TPU and never waits. What to do follows from what the API and the
bucket say, so that the agent may be killed at any point. It acts only within what the stack
declares: a TPU that someone else has deleted, or that is not the stack's, is left alone. A request
in the queue is recreated as a whole. Where the stack names further zones, it goes to the next one
when there is no capacity, after it is gone from the previous one: there are never two.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpu_agent import tpus as forms
from tpu_agent.ledger import Ledger
from tpu_core import causes, paths, times
from tpu_core.bucket import Bucket
from tpu_core.google import Call, Client, Json
from tpu_core.memory import Memory
from tpu_core.tpu import Place, Seen, short_name, state_of

# Between two tries to make a TPU, doubled each time, with half of it left to chance.
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 600.0
# How long a TPU may be ill before it is recreated, and how long a new one may need to answer.
_PATIENCE, _FIRST_PATIENCE = 300.0, 1200.0
# How long the creation of a TPU may take; in a queue there is no such limit.
_NEVER_READY, _NEVER = 3600.0, float("inf")
_NOT_OURS = "{} is not labeled as this stack's: left alone"


class Recovery:
    """Recovers the TPUs, one look at a time; `ended` if the time of one is up while it is gone."""

    def __init__(
        self, place: Place, client: Client, world: "World", ledger: Ledger | None = None
    ) -> None:
        self._place, self._call, self._world = place, client.call, world
        self._bucket, self._ledger = Bucket(place.bucket, client.send), ledger
        self._queued: tuple[str, Sequence[str]] = "", ()
        self._memory = Memory(self._bucket, world.now, world.say)
        self._zones = Zones(place, client.call)
        self._ill: dict[str, float] = {}
        self._answered: set[str] = set()
        self._said: dict[str, str] = {}
        self._hours, self.ended = _NEVER, False

    def look(
        self,
        names: Sequence[str],
        budgets: Mapping[str, int],
        request: str | None = None,
        zone_minutes: float = 0.0,
        hours: float = _NEVER,
    ) -> None:
        """Do one step for each TPU. Raises OSError if Google does not answer.

        Args:
            names: the TPUs.
            budgets: how many losses of each kind a day may have.
            request: the request in the queue that all of them come from.
            zone_minutes: how long it waits in a zone before it tries the next one.
            hours: how long a TPU lives, counted from the first that it replaces.
        """
        self._hours = hours
        self._queued = (request, names) if request is not None else ("", ())
        if request is not None:
            self._look_at_request(request, names, budgets, zone_minutes)
            return
        for name, seen in self._seen(names, None):
            self._note(name, seen)
            self._look_at(name, seen, budgets)

    def renew(
        self, names: Sequence[str], budgets: Mapping[str, int], request: str | None, why: str
    ) -> None:
        """Recreate what is READY and does not work; it counts as a failure. Raises OSError."""
        for name, seen in self._seen(names, request):
            if seen is not None and seen.phase == "ready":
                self._take_down(name, seen, "failure", f"it is READY, but {why}", budgets)

    def sleep(self, names: Sequence[str], request: str | None) -> None:
        """Remember what a limit deletes next, to recreate it once a job wants it.

        Raises:
            OSError: if Google does not answer. It may be repeated.
        """
        for name, seen in self._seen(names, request):
            declared = self._declared(name)
            if seen and declared and declared.owns(name, seen.labels):
                self._memory.sleep(name, seen, declared.digest(name))
        self._memory.save()

    def _seen(self, names: Sequence[str], request: str | None) -> Iterator[tuple[str, Seen | None]]:
        if request is not None:
            yield request, self._zones.find(request, names, self._memory.remaking.get(request))[0]
            return
        for name in names:
            yield name, forms.find_node(self._place, self._call, name)

    @property
    def hurries(self) -> bool:
        """Whether Google is deleting or making a TPU, which may be over any moment."""
        return self._memory.hurries()

    def _look_at_request(
        self, name: str, tpus: Sequence[str], budgets: Mapping[str, int], minutes: float
    ) -> None:
        entry = self._memory.remaking.get(name)
        seen, others = self._zones.find(name, tpus, entry)
        self._note(name, seen)
        stacks = next((other for other in others if self._is_ours(name, other)), None)
        if stacks is not None:
            self._yield_to(stacks, name, seen)
        elif entry and seen and has_waited(seen, entry, self._world.now(), minutes):
            why = f"it waited in {seen.zone} for {minutes:g} minutes"
            self._take_down(name, seen, "shortage", why, budgets)
        else:
            self._look_at(name, seen, budgets)

    def _yield_to(self, stacks: Seen, name: str, own: Seen | None) -> None:
        """Leave a request to the stack, which has made it in another zone at the same time."""
        if own is None or not self._is_ours(name, own):
            self._leave(name, f"{name} is left to the stack, which created it in {stacks.zone}")
            return
        self._delete(name, own)

    def _is_ours(self, name: str, seen: Seen) -> bool:
        declared = self._declared(name)
        return declared is not None and declared.owns(name, seen.labels)

    def _look_at(self, name: str, seen: Seen | None, budgets: Mapping[str, int]) -> None:
        if seen is None:
            self._missing(name)
        elif seen.phase == "lost":
            self._take_down(name, seen, seen.kind, f"it is {seen.state}", budgets)
        elif seen.phase == "ready":
            self._ready(name, seen, budgets)
        elif seen.state == "CREATING" and seen.nodes:
            self._creating(name, seen, budgets)
        elif seen.phase == "unknown":
            self._say_once(name, f"{name} is in the unknown state {seen.state}: left alone")

    def _creating(self, name: str, seen: Seen, budgets: Mapping[str, int]) -> None:
        """Recreate what this agent creates and what never gets ready; leave others' creations."""
        entry = self._memory.remaking.get(name)
        if entry and has_lasted(seen, entry, self._world.now(), _NEVER_READY):
            why = f"it is still CREATING after {_NEVER_READY / 60:.0f} minutes"
            self._take_down(name, seen, "failure", why, budgets)

    def _ready(self, name: str, seen: Seen, budgets: Mapping[str, int]) -> None:
        self.ended, entry = False, self._memory.ready(name, seen)
        if entry is not None:
            took = self._world.now() - entry["since"]
            self._ill.pop(name, None)
            self._answered.discard(name)
            if "asleep" not in entry:
                back = f"{name} is back after {took:.0f} s"
                self._say_once(name, back if self._is_ours(name, seen) else _NOT_OURS.format(name))
        why = forms.why_ill(seen, self._world.silent)
        if why is None:
            self._answered.add(name)
            self._ill.pop(name, None)
            return
        since = self._ill.setdefault(name, self._world.now())
        patience = _PATIENCE if name in self._answered else _FIRST_PATIENCE
        if self._world.now() - since >= patience:
            self._take_down(name, seen, "failure", f"it is READY, but {why}", budgets)

    def _take_down(
        self, name: str, seen: Seen, kind: str, why: str, budgets: Mapping[str, int]
    ) -> None:
        """Delete what is left of a TPU: it holds quota and the name."""
        declared = self._declared(name)
        if declared is None:
            return
        if not declared.owns(name, seen.labels):
            self._say_once(name, _NOT_OURS.format(name))
            return
        entry = self._memory.remaking.get(name)
        if entry is None or entry["created"] != seen.created:
            if kind in budgets and self._memory.today(kind) >= budgets[kind]:
                self._give_up(name, why, kind, budgets[kind])
                return
            self._memory.add(kind, name, why)
            new = self._memory.entry(name, seen, declared.digest(name), why)
            if entry:
                # What is lost again before it was READY is recreated more slowly each time.
                new |= {"since": entry["since"], "tries": entry["tries"] + 1}
                new["notBefore"] = self._world.now() + self._pause(entry["tries"])
            # Once it is gone. What fails in one zone may work in another.
            new["leaves"] = kind == "shortage" or kind == seen.kind == "failure"
            self._memory.remaking[name] = new
            self._memory.save()
        self._say_once(name, f"{name} is deleted and recreated: {why}")
        self._delete(name, seen)

    def _give_up(self, name: str, why: str, kind: str, budget: int) -> None:
        text = (
            f"{name} is no longer recovered: {why}, and the budget of {budget} a day ({kind}) is "
            "used up. Raise the stack's recovery budget, or run `tpustack recover`"
        )
        if self._said.get(name) != text:
            self._world.tell(f"{text}\ngs://{self._place.bucket}")
        self._say_once(name, text)

    def _delete(self, name: str, seen: Seen) -> None:
        status, answer = self._call("DELETE", seen.address, None)
        # 400 and 409: it is being deleted already, or an operation on it still runs.
        if status not in (200, 400, 404, 409):
            raise OSError(
                f"deleting {name}: HTTP status {status}, {causes.cause_of(status, answer)}"
            )
        if self._ledger and status != 404:
            self._ledger.removed(self._tpus(name), comes_back=True)

    def _missing(self, name: str) -> None:
        """Create a TPU that this agent has deleted; someone else's deletion counts as meant."""
        entry = self._memory.remaking.get(name)
        if entry is None:
            self._memory.forget(name)
            return
        if self._world.now() >= (entry["born"] or _NEVER) + self._hours * 3600:
            self.ended = True
            self._leave(name, f"{name} is not recreated: its {self._hours:g} hours are over")
            return
        # A longer pause than the longest was left by a wrong clock.
        if 0.0 < entry["notBefore"] - self._world.now() <= _LONGEST_PAUSE:
            return
        if "asleep" in entry:
            if not self._memory.wakes(entry):
                return
            self._say_once(name, f"{name} is recreated: a job waits for it")
        if entry["operation"] and not self._is_over(name, entry):
            return
        declared = self._declared(name)
        if declared is None or declared.digest(name) != entry["declared"]:
            self._leave(name, f"{name} is left to `pulumi up`, because the stack has changed")
            return
        if entry.get("leaves"):
            entry["zone"], entry["leaves"] = self._zones.after(self._zones.place(entry).zone), False
        # Of two agents, the one that can write the state creates it.
        entry["made"] = self._world.now()
        self._memory.save()
        place = self._zones.place(entry)
        url, body = forms.creation(place, name, declared.tpus[name], entry["labels"])
        status, answer = self._call("POST", url, json.dumps(body))
        if self._ledger and status in (200, 409) and not self._queued[0]:
            self._ledger.creating(self._tpus(name))
        if status == 200:
            entry["operation"] = answer.get("name")
            self._memory.save()
        elif status != 409:  # Someone else created it: the next look shows it.
            self._put_off(name, entry, causes.cause_of(status, answer))

    def _is_over(self, name: str, entry: Json) -> bool:
        """Return whether a creation that has brought nothing is over, and may be tried again."""
        address = forms.operation_address(self._zones.place(entry), entry["operation"])
        status, operation = self._call("GET", address, None)
        operation = forms.as_of_tpus(operation)
        if status not in (200, 404):
            why = causes.cause_of(status, operation)
            raise OSError(f"{entry['operation']}: HTTP status {status}, {why}")
        if status == 200 and not operation.get("done"):
            return False
        if status == 200 and not operation.get("error"):
            # It existed: a queued resource may be deleted hours before it gets a TPU.
            self._leave(name, f"{name} was recreated, and then deleted manually: left alone")
            return False
        entry["operation"] = None
        if status == 404:
            return True
        self._put_off(name, entry, causes.cause_of(operation["error"].get("code", 0), operation))
        return False

    def _tpus(self, name: str) -> Sequence[str]:
        """Return the TPUs that come and go with what has this name."""
        request, tpus = self._queued
        return tpus if name == request else (name,)

    def _note(self, name: str, seen: Seen | None) -> None:
        """Tell the ledger what was seen."""
        if not self._ledger:
            return
        tpus = self._tpus(name)
        if seen and not seen.nodes:
            self._ledger.saw_request(tpus, seen.phase, seen.state)
            return
        nodes = seen.nodes if seen else ()
        states = {short_name(node): state_of(node) for node in nodes if "name" in node}
        for tpu in tpus:
            self._ledger.saw(tpu, states.get(tpu))

    def _leave(self, name: str, why: str) -> None:
        self._memory.forget(name)
        self._say_once(name, why)

    def _put_off(self, name: str, entry: Json, cause: causes.Cause) -> None:
        if self._ledger:
            self._ledger.refused(self._tpus(name), f"{cause.name}: {cause.said}")
        pause, several = self._pause(entry["tries"]), len(self._zones.names) > 1
        entry |= {"tries": entry["tries"] + 1, "cause": str(cause), "made": None}
        # What one zone lacks, such as a runtime, another may have.
        entry["leaves"] = cause.name in causes.SHORTAGES or not cause.passes
        # Where a person has to act first, rare tries are enough.
        pause = pause if cause.passes or several else _LONGEST_PAUSE
        entry["notBefore"] = self._world.now() + pause
        self._memory.save()
        where = f" in {self._zones.place(entry).zone}" if several else ""
        self._say_once(name, f"{name} is not created yet{where}: {cause}")

    def _pause(self, tries: int) -> float:
        """Return a pause, which grows with each round through the zones."""
        rounds = tries // len(self._zones.names)
        return times.backoff(rounds, _FIRST_PAUSE, _LONGEST_PAUSE, self._world.chance)

    def _declared(self, name: str) -> forms.Declaration | None:
        found = forms.read_declaration(self._bucket)
        if found is None or name not in found.tpus:
            self._say_once(
                name,
                f"{name} is left alone: gs://{self._place.bucket}/{paths.DECLARATION} doesn't "
                "describe it. Run `pulumi up` to write it",
            )
            return None
        return found

    def _say_once(self, name: str, text: str) -> None:
        if self._said.get(name) != text:
            self._said[name] = text
            self._world.say(text)


class Zones:
    """The zones that a queued resource may be in, in the order in which they are tried.

    The API is asked where it is, since `pulumi up` may have moved it. Only where the agent creates
    one is remembered.
    """

    def __init__(self, place: Place, call: Call) -> None:
        self._place, self._call = place, call
        self._last: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """Return the zones, that which the stack prefers first."""
        return [place.zone for place in self._place.everywhere()]

    def place(self, entry: Json) -> Place:
        """Return where something is being recreated, by what the agent remembers of it.

        Jobs on the machine can write that: no zone counts that the stack does not name.
        """
        zone = entry.get("zone")
        return replace(self._place, zone=zone if zone in self.names else self._place.zone)

    def after(self, zone: str) -> str:
        """Return the zone to try after this one; the first follows the last."""
        names = self.names
        return names[(names.index(zone) + 1) % len(names)] if zone in names else names[0]

    def find(
        self, name: str, tpus: Sequence[str], entry: Json | None
    ) -> tuple[Seen | None, list[Seen]]:
        """Return a request, and others of its name in other zones. Raises OSError.

        Others are looked for only while the agent recreates it: `pulumi up` may do so, too.
        """
        home = self.place(entry or {"zone": self._last.get(name, self._place.zone)})
        found = forms.find_request(home, self._call, name, tpus)
        others: list[Seen] = []
        if entry or found is None:
            elsewhere = [each for each in self._place.everywhere() if each.zone != home.zone]
            seen = (forms.find_request(each, self._call, name, tpus) for each in elsewhere)
            others = [each for each in seen if each]
        if entry is None and others:
            found, others = others[0], []
        if found:
            self._last[name] = found.zone
        return found, others


def has_waited(seen: Seen, entry: Json, now: float, minutes: float) -> bool:
    """Return whether a request has waited so long for capacity; 0 minutes are without an end."""
    return bool(minutes) and seen.phase == "waiting" and has_lasted(seen, entry, now, minutes * 60)


def has_lasted(seen: Seen, entry: Json, now: float, limit: float) -> bool:
    """Return whether what is being made was begun so many seconds ago.

    The agent's own clock may differ from Google's: it counts from its own word of when it began.
    """
    made: float | None = entry.get("made")
    if made is None and seen.created:
        made = times.seconds(seen.created)
    return made is not None and now - made >= limit


@dataclass(frozen=True)
class World:
    """What recovery needs besides Google, which tests replace.

    Attributes:
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
        silent: why no gRPC server answers at (host, port); None if one does.
        chance: a number from 0 to 1.
        tell: tells people elsewhere what they have to act on; it never fails.
    """

    now: Callable[[], float]
    say: Callable[[str], None]
    silent: Callable[[str, int], str | None]
    chance: Callable[[], float]
    tell: Callable[[str], None] = lambda text: None
