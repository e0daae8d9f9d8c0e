"""The zones that a request in the queue may be in, in the order in which they are tried.

The API is asked where a request is, and nothing is written down of it but where the agent is making
one: `pulumi up` may have moved it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infra.startup.agent.google import Call, Json
from infra.startup.agent.times import seconds
from infra.startup.agent.tpunames import Place

from . import forms
from .forms import Seen


class Zones:
    """Finds a request, and says where it is made next."""

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

        Others are looked for only while the agent makes it anew: then `pulumi up` may do so, too.
        """
        home = self.place(entry or {"zone": self._last.get(name, self._place.zone)})
        found = forms.request(home, self._call, name, tpus)
        others: list[Seen] = []
        if entry or found is None:
            elsewhere = [each for each in self._place.everywhere() if each.zone != home.zone]
            seen = (forms.request(each, self._call, name, tpus) for each in elsewhere)
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
        made = seconds(seen.created)
    return made is not None and now - made >= limit
