"""Compares two plans of the engine: the one that was reviewed, and a fresh one.

The engine enforces a plan only while it works, when some of it is done already. A kept plan is
therefore compared with a fresh one first, and the fresh one is what the engine is held to: so a
run that was killed can be taken up again, with less left to do than was reviewed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.names import MADE_FOR, MARK

# The engine's marks of a value that it will know only later, and of a secret or a file.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SECRET = "4dabf18193072939515e22adb298388d"
Plan = Mapping[str, Any]
# What the engine tells of a resource beside what it does with it.
_TOLD = ("inputDiff", "outputDiff")
_IN_ANY_ORDER = ("dependencies", "propertyDependencies")
# Of a difference: where it begins, and how something differs.
_LEVELS = ("", "adds", "updates", "deletes")


def surplus(fresh: Plan, reviewed: Plan, *, resumed: bool = False) -> list[str]:
    """Return what would be done now and was not reviewed, a line each.

    Args:
        fresh: the steps by URN, now.
        reviewed: the steps that were reviewed.
        resumed: some of them are done. Then what was unknown may be known, and a step may be
            missing; else nothing may differ.
    """
    return [
        line for urn, plan in sorted(fresh.items()) for line in _of(urn, plan, reviewed, resumed)
    ]


def _of(urn: str, plan: Mapping[str, Any], reviewed: Plan, resumed: bool) -> Iterator[str]:
    steps = [step for step in plan.get("steps") or [] if step != "same"]
    if not steps:
        return
    # A name may have colons of its own.
    _, _, types, name = urn.split("::", 3)
    title = f"{types.rpartition('$')[2]} {name}"
    before = reviewed.get(urn)
    planned = list((before or {}).get("steps") or [])
    # A resource that a killed run was creating is there, and gets what it lacks.
    completed = resumed and steps == ["update"] and planned == ["create"]
    if before is None or not (completed or _is_left(steps, planned, resumed)):
        was = ", ".join(planned) or "nothing"
        yield f"{title}: {', '.join(steps)} (reviewed: {was})"
        return
    now, then = (dict(each.get("goal") or {}) for each in (plan, before))
    inputs, reviewed_inputs = (each.get("inputDiff") or {} for each in (now, then))
    if completed:
        inputs, reviewed_inputs = _as_created(inputs, reviewed_inputs)
    paths = {
        *_differing(inputs, reviewed_inputs, "", resumed),
        *_differing(_options(now), _options(then), "", resumed),
    }
    if paths:
        yield f"{title}: {', '.join(steps)} as reviewed, but with other {', '.join(sorted(paths))}"


def _is_left(steps: Sequence[str], planned: Sequence[str], resumed: bool) -> bool:
    """Return whether the steps are what is left of the planned ones, in their order."""
    if not resumed:
        return list(steps) == list(planned)
    rest = iter(planned)
    return all(step in rest for step in steps)


def _as_created(update: Any, creation: Any) -> tuple[Any, Any]:
    """Return what an update changes, and what the creation that it completes says of the same."""
    if not isinstance(update, dict) or not isinstance(creation, dict):
        return update, creation
    created = creation.get("adds")
    created = created if isinstance(created, dict) else {}
    changes = {**(update.get("adds") or {}), **(update.get("updates") or {})}
    changes |= dict.fromkeys(update.get("deletes") or ())
    return changes, {key: created.get(key) for key in changes}


def _options(goal: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else decides what is done: protection, provider, dependencies."""
    kept = {name: value for name, value in goal.items() if name not in _TOLD}
    if isinstance(provider := kept.get("provider"), str):
        # The ID of a provider that is new is known only later.
        kept["provider"] = dict(zip(("urn", "id"), provider.rsplit("::", 1), strict=False))
    for each in _IN_ANY_ORDER:
        kept[each] = _sorted(kept.get(each))
    return kept


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(each) for name, each in value.items()}
    return sorted(map(str, value)) if isinstance(value, list) else value


def _are_marks(now: Any, then: Any, path: str) -> bool:
    """Return whether it is the stack's mark: a new stack is previewed in another backend."""
    texts = (str(now), str(then))
    return path == f"labels.{MARK}" or all(text.startswith(MADE_FOR) for text in texts)


def _differing(now: Any, then: Any, path: str, resumed: bool) -> Iterator[str]:
    if _is_encrypted(now) or _is_encrypted(then):
        # Encrypted anew each time, so that nobody can tell.
        yield path
        return
    if now == then or _are_marks(now, then, path) or _are_same_files(now, then):
        return
    if resumed and then == UNKNOWN and path not in _LEVELS:
        return
    if isinstance(now, dict) and isinstance(then, dict):
        for key in now.keys() | then.keys():
            below = key if path in _LEVELS else f"{path}.{key}"
            yield from _differing(now.get(key), then.get(key), below, resumed)
    else:
        yield path or "properties"


def _are_same_files(now: Any, then: Any) -> bool:
    """Return whether both are files with the same content: another job has it elsewhere."""
    if not isinstance(now, dict) or not isinstance(then, dict):
        return False
    marks = [(each.get(SECRET), each.get("hash")) for each in (now, then)]
    return marks[0] == marks[1] and None not in marks[0]


def _is_encrypted(value: Any) -> bool:
    return isinstance(value, dict) and SECRET in value and "ciphertext" in value
