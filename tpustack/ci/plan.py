"""Compares two plans of the engine: the one that was reviewed, and a fresh one.

The engine enforces a plan only while it works, when some of it is done already. A kept plan is
therefore compared with a fresh one first, and the fresh one is what the engine is held to: so a
run that was killed can be taken up again, with less left to do than was reviewed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# The engine's marks of a value that it will know only later, and of a secret.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_SECRET = "4dabf18193072939515e22adb298388d"
Plan = Mapping[str, Any]


def load(path: Path) -> Plan:
    """Return a plan's steps by URN. Raises ValueError if the file is no plan of the engine."""
    plans: Plan = json.loads(path.read_text(encoding="utf-8"))["resourcePlans"]
    return plans


def surplus(fresh: Plan, reviewed: Plan) -> list[str]:
    """Return what would be done now and was not reviewed, a line each."""
    return [line for urn, plan in sorted(fresh.items()) for line in _of(urn, plan, reviewed)]


def _of(urn: str, plan: Mapping[str, Any], reviewed: Plan) -> Iterator[str]:
    steps = [step for step in plan.get("steps") or [] if step != "same"]
    if not steps or "$pulumi:providers:" in urn or "::pulumi:" in urn:
        return
    title = f"{urn.split('::')[-2].rpartition('$')[2]} {urn.rpartition('::')[2]}"
    before = reviewed.get(urn)
    planned = (before or {}).get("steps") or []
    if before is None or not set(steps) <= set(planned):
        was = ", ".join(planned) or "nothing"
        yield f"{title}: {', '.join(steps)} (reviewed: {was})"
        return
    now, then = (_difference(each) for each in (plan, before))
    if paths := sorted(set(_differing(now, then, ""))):
        yield f"{title}: {', '.join(steps)} as reviewed, but with other {', '.join(paths)}"


def _difference(plan: Mapping[str, Any]) -> Any:
    return (plan.get("goal") or {}).get("inputDiff") or {}


def _differing(now: Any, then: Any, path: str) -> Iterator[str]:
    if then == UNKNOWN or now == then:
        return
    if isinstance(now, dict) and isinstance(then, dict):
        if _SECRET in now and _SECRET in then:
            return  # Encrypted anew each time.
        for key in now.keys() | then.keys():
            # The first level says how (adds, updates, deletes), those below say what.
            below = key if path in ("", "adds", "updates", "deletes") else f"{path}.{key}"
            yield from _differing(now.get(key), then.get(key), below)
    else:
        yield path
