"""What the agent remembers in the bucket, so that it can be killed at any point."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from .forms import Seen
from .google import FORMAT, Bucket, Json, seconds, short_name
from .jobs.layout import WANTED

PATH = "agent/state.json"
_DAY = 86400.0
_KEPT_EVENTS = 1000
_LARGEST = 1e15
# What takes longer than most, such as a queue, is not looked at all the time.
_HURRY = 900.0


class Memory:
    """The TPUs that are being made anew, since when each lives, and what has happened.

    It is written before each step, on condition that no other agent has written it, and each step
    can be repeated. What can't be read is put aside, but for the TPUs in it.
    """

    def __init__(
        self, bucket: Bucket, now: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._bucket, self._now, self._say = bucket, now, say
        self._content: Json | None = None
        self._generation = ""

    @property
    def remaking(self) -> dict[str, Json]:
        """Return, by the name of each TPU that is being made anew, what is known of it."""
        found: dict[str, Json] = self._load()["remaking"]
        return found

    def today(self, kind: str) -> int:
        """Return how many events of a kind, `preemption` or `failure`, the last day has seen."""
        # What lies in the future was written by a clock that was wrong.
        end, events = self._now(), self._load()["events"]
        return sum(e["kind"] == kind and end - _DAY < e["at"] <= end for e in events)

    def add(self, kind: str, name: str, cause: str) -> None:
        """Add an event; `save` keeps it."""
        event = {"at": self._now(), "kind": kind, "tpu": name, "cause": cause}
        content = self._load()
        content["events"] = [*content["events"], event][-_KEPT_EVENTS:]

    def hurries(self) -> bool:
        """Return whether Google is deleting or making a TPU, which may be over any moment."""
        now = self._now()
        return any(
            "asleep" not in entry and entry["notBefore"] <= now < entry["since"] + _HURRY
            for entry in self.remaking.values()
        )

    def entry(self, name: str, seen: Seen, declared: str, why: str) -> Json:
        """Return what is to be known of a TPU that is there now, and is to be made anew.

        `declared` is the digest of what the stack declares of it. The next one's life began with
        this one's.
        """
        before, lives = self.remaking.get(name), self._load()["lives"].get(name, {}).values()
        made = [node.get("createTime") for node in seen.nodes]
        born = [life["born"] for life in lives if not made or life.get("created") in made]
        if before is not None:
            born = [before["born"]] if "born" in before else []
        return {
            **_new(self._now()),
            **({"born": min(born)} if born else {}),
            "cause": why,
            "created": seen.created,
            "labels": seen.labels,
            "declared": declared,
            "zone": seen.zone,
        }

    def ready(self, name: str, seen: Seen) -> Json | None:
        """Note which TPUs are READY and since when each lives; return what was being made anew.

        What was made anew lives since the one that was lost was made.
        """
        content = self._load()
        entry: Json | None = content["remaking"].pop(name, None)
        found = {short_name(n): n["createTime"] for n in seen.nodes if n.get("createTime")}
        known = content["lives"].get(name, {})
        if {tpu: life.get("created") for tpu, life in known.items()} != found:
            born = (entry or {}).get("born")
            content["lives"][name] = {
                tpu: {"created": at, "born": seconds(at) if born is None else born}
                for tpu, at in found.items()
            }
        elif entry is None:
            return None
        self.save()
        return entry

    def forget(self, name: str) -> None:
        """Forget a TPU that is not made anew; another of its name lives a life of its own."""
        content = self._load()
        made, lived = content["remaking"].pop(name, None), content["lives"].pop(name, None)
        if made or lived:
            self.save()

    def sleep(self, name: str, seen: Seen, declared: str) -> None:
        """Note what a limit deletes next; `save` keeps it."""
        entry = self.entry(name, seen, declared, "nothing ran on it")
        self.remaking[name] = {**entry, "asleep": self._now()}

    def wakes(self, entry: Json) -> bool:
        """Return whether a job has wanted a TPU since a limit deleted it, and note that it has.

        Raises:
            OSError: if the bucket does not answer.
        """
        wanted = (self._bucket.read(WANTED) or {}).get("at")
        if not isinstance(wanted, int | float) or wanted <= entry["asleep"]:
            return False
        # It lives from then on.
        for part in ("asleep", "born"):
            entry.pop(part, None)
        entry["since"] = self._now()
        self.save()
        return True

    def save(self) -> None:
        """Write everything. Raises OSError, after which it is read again.

        That another agent has written it is such an error: that one's word counts.
        """
        content, self._content = self._load(), None
        text = json.dumps({"format": FORMAT, **content}, indent=1)
        self._generation = self._bucket.write(PATH, text + "\n", self._generation)
        self._content = content

    def _load(self) -> Json:
        if self._content is None:
            found, self._generation = self._bucket.read_current(PATH)
            self._content = sound(found or {}, self._now())
            if found is not None and (why := _wrong(found, self._content)):
                self._say(self._bucket.put_aside(PATH, self._now(), why))
        return self._content


def birth(state: Json, name: str, node: Json) -> float:
    """Return when a TPU's life began: that of the one that it was made anew for.

    Args:
        state: what the agent remembers, as far as it is known.
        name: of the TPU, or of the request in the queue that it came from.
        node: the TPU.
    """
    created = seconds(node["createTime"])
    known = sound(state, created)
    life = known["lives"].get(name, {}).get(short_name(node), {})
    of_this = life["born"] if life.get("created") == node["createTime"] else created
    return min(created, of_this, known["remaking"].get(name, {}).get("born") or created)


def sound(content: Json, now: float) -> Json:
    """Return what can be read of a state, also of a damaged one or of another release's."""
    remaking = {
        name: {**_new(now), **{k: v for k, v in entry.items() if k in _FIELDS and _FIELDS[k](v)}}
        for name, entry in _objects(content.get("remaking"))
        if isinstance(entry.get("declared"), str)
    }
    lives = {
        name: {tpu: life for tpu, life in _objects(lives) if _is_number(life.get("born"))}
        for name, lives in _objects(content.get("lives"))
    }
    events = content.get("events")
    kept = [event for event in events if _is_event(event)] if isinstance(events, list) else []
    return {"remaking": remaking, "lives": lives, "events": kept}


def _wrong(content: Json, read: Json) -> str:
    """Return why not all of a state could be read; empty if it could."""
    if content.get("format") != FORMAT:
        return f"its format is {content.get('format')!r}, and this release reads {FORMAT}"
    bad = [part for part in read if content.get(part) != read[part]]
    return f"its {' and '.join(bad)} can't be read" if bad else ""


def _objects(found: object) -> Iterable[tuple[str, Json]]:
    pairs = found.items() if isinstance(found, dict) else ()
    return [(name, each) for name, each in pairs if isinstance(each, dict)]


def _new(now: float) -> Json:
    times = {"since": now, "tries": 0, "notBefore": 0.0}
    return {**times, "created": None, "operation": None, "cause": "", "labels": {}}


def _is_event(event: object) -> bool:
    return isinstance(event, dict) and "kind" in event and _is_number(event.get("at"))


def _is_number(value: object) -> bool:
    # Neither NaN nor what no clock says.
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_FIELDS: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("since", "tries", "notBefore", "asleep", "born"), _is_number),
    **dict.fromkeys(("cause", "declared", "zone"), _is_text),
    **dict.fromkeys(("created", "operation"), lambda value: value is None or _is_text(value)),
    "made": lambda value: value is None or _is_number(value),
    "labels": lambda value: isinstance(value, dict),
    "leaves": lambda value: isinstance(value, bool),
}
"""What is known of a TPU that is being made anew."""
