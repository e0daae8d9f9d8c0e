"""What the agent remembers in the bucket, so that it can be killed at any point."""

from collections.abc import Callable

from tpu_core import paths, records, times
from tpu_core.bucket import Bucket
from tpu_core.google import Json
from tpu_core.tpu import Seen

_DAY = 86400.0
# Of a time in seconds: anything beyond was written by a wrong clock or is damaged.
_LARGEST = 1e15
# Each save writes all of them, so they must not grow for as long as the stack lives.
_KEPT_EVENTS = 1000
# What takes longer than most, such as a queue, is not looked at all the time.
_HURRY = 900.0
# So long a limit may take from its note until Google shows that a TPU is being deleted.
_FALLING = 120.0


class Memory:
    """The TPUs that are being recreated, since when each lives, and what has happened.

    It is written before each step, on condition that no other agent has written it, and each step
    can be repeated. What can't be read is put aside, but for the TPUs in it.
    """

    def __init__(
        self, bucket: Bucket, now: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._bucket, self._now, self._say = bucket, now, say
        self._content: Json | None = None
        self._generation: int | None = None

    @property
    def remaking(self) -> dict[str, Json]:
        """Return, by the name of each TPU that is being recreated, what is known of it."""
        found: dict[str, Json] = self._load()["remaking"]
        return found

    def hurries(self) -> bool:
        """Return whether Google is deleting or making a TPU, which may be over any moment."""
        now = self._now()
        return any(
            "asleep" not in entry and entry["notBefore"] <= now < entry["since"] + _HURRY
            for entry in self.remaking.values()
        )

    def today(self, kind: str) -> int:
        """Return how many events of a kind, `preemption` or `failure`, the last day has seen."""
        # An event in the future was written by a wrong clock.
        end, events = self._now(), self._load()["events"]
        return sum(e["kind"] == kind and end - _DAY < e["at"] <= end for e in events)

    def add(self, kind: str, name: str, cause: str) -> None:
        """Add an event; `save` keeps it."""
        event = {"at": self._now(), "kind": kind, "tpu": name, "cause": cause}
        content = self._load()
        content["events"] = [*content["events"], event][-_KEPT_EVENTS:]

    def entry(self, name: str, seen: Seen, declared: str, why: str) -> Json:
        """Return what is to be known of a TPU that exists now and is to be recreated.

        `declared` is the digest of what the stack declares of it. The next one lives on from when
        this one was born.
        """
        before, lives = self.remaking.get(name), self._load()["lives"].get(name, {})
        made = {node.get("createTime") for node in seen.nodes} or lives.keys()
        born = min((lives[at] for at in lives if at in made), default=None)
        return {
            **_blank(self._now()),
            "cause": why,
            "created": seen.created,
            "labels": seen.labels,
            "declared": declared,
            "zone": seen.zone,
            "born": before["born"] if before else born,
        }

    def ready(self, name: str, seen: Seen) -> Json | None:
        """Note since when what is READY lives; return what was known, if it was recreated."""
        content = self._load()
        if _falls_asleep(content["remaking"].get(name), seen, self._now()):
            return None
        entry: Json | None = content["remaking"].pop(name, None)
        made = {str(node["createTime"]) for node in seen.nodes if node.get("createTime")}
        if entry or content["lives"].get(name, {}).keys() != made:
            born = _born(entry)
            content["lives"][name] = {
                at: times.seconds(at) if born is None else born for at in made
            }
            self.save()
        return entry

    def forget(self, name: str) -> None:
        """Forget a TPU that is not recreated; another of its name lives a life of its own."""
        content = self._load()
        made, lived = content["remaking"].pop(name, None), content["lives"].pop(name, None)
        if made or lived:
            self.save()

    def sleep(self, name: str, seen: Seen, declared: str) -> None:
        """Note what a limit deletes next; `save` keeps it."""
        entry = self.entry(name, seen, declared, "nothing ran on it")
        self.remaking[name] = {**entry, "born": None, "asleep": self._now()}

    def wakes(self, entry: Json) -> bool:
        """Return whether a job has wanted a TPU since a limit deleted it, and note that it has.

        Raises:
            OSError: if the bucket does not answer.
        """
        wanted = (self._bucket.read_json(paths.WANTED)[0] or {}).get("at")
        if not isinstance(wanted, int | float) or wanted <= entry["asleep"]:
            return False
        del entry["asleep"]
        entry["since"] = self._now()
        self.save()
        return True

    def save(self) -> None:
        """Write everything. Raises OSError, after which it is read again.

        That another agent has written it is such an error: that one's word counts.
        """
        content, self._content = self._load(), None
        self._generation = self._bucket.write(
            paths.STATE, records.dump(content), generation=self._generation
        )
        self._content = content

    def _load(self) -> Json:
        if self._content is None:
            found, self._generation = self._bucket.read_json(paths.STATE)
            self._content = _sound(found or {}, self._now())
            # NaN differs from itself.
            if found is not None and found != records.stamped(self._content):
                why = f"format {found.get('format')!r} with parts that can't be read as "
                why += str(records.FORMAT)
                self._say(self._bucket.set_aside(paths.STATE, self._now(), why))
        return self._content


def birth(state: Json, name: str, node: Json) -> float:
    """Return when a TPU's life began: that of the first one in its place.

    Args:
        state: what the agent remembers, as far as it is known.
        name: of the TPU, or of the request in the queue that it came from.
        node: the TPU.
    """
    created = times.seconds(node["createTime"])
    known = _sound(state, created)
    remade = _born(known["remaking"].get(name))
    lived: float = known["lives"].get(name, {}).get(node["createTime"], created)
    return min(created, lived, created if remade is None else remade)


def _born(entry: Json | None) -> float | None:
    """Return when the life began of what the agent has made; what a person made has its own."""
    born: float | None = entry["born"] if entry and entry["made"] is not None else None
    return born


def _falls_asleep(entry: Json | None, seen: Seen, now: float) -> bool:
    """Return whether a limit deletes it now, in a thread of its own, though it is still READY."""
    if not entry or "asleep" not in entry or entry["created"] != seen.created:
        return False
    since: float = entry["asleep"]
    return since <= now < since + _FALLING


def _sound(content: Json, now: float) -> Json:
    """Return what can be read of a state, also of a damaged one or of another release's."""
    made, lives, events = (content.get(part) for part in ("remaking", "lives", "events"))
    entries = {name: _blank(now) | entry for name, entry in _objects(made)}
    return {
        "remaking": {name: entry for name, entry in entries.items() if _is_known(entry)},
        "lives": {
            name: {at: born for at, born in each.items() if _is_number(born)}
            for name, each in _objects(lives)
        },
        "events": [e for e in events if _is_event(e)] if isinstance(events, list) else [],
    }


def _objects(found: object) -> list[tuple[str, Json]]:
    pairs = found.items() if isinstance(found, dict) else ()
    return [(name, each) for name, each in pairs if isinstance(each, dict)]


def _blank(now: float) -> Json:
    moments = {"since": now, "tries": 0, "notBefore": 0.0, "made": None, "born": None}
    return {**moments, "created": None, "operation": None, "cause": "", "labels": {}}


def _is_known(entry: Json) -> bool:
    numbers = [entry[name] for name in ("since", "tries", "notBefore")]
    numbers += [entry[name] for name in ("made", "born") if entry[name] is not None]
    return (
        all(map(_is_number, [*numbers, entry.get("asleep", 0.0)]))
        and isinstance(entry["labels"], dict)
        and isinstance(entry["operation"] or "", str)
        and "declared" in entry
    )


def _is_event(event: object) -> bool:
    return isinstance(event, dict) and "kind" in event and _is_number(event.get("at"))


def _is_number(value: object) -> bool:
    """Return whether a value in the bucket is a number that a clock may show; not NaN."""
    return isinstance(value, int | float) and abs(value) < _LARGEST
