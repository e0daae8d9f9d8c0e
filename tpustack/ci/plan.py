"""The plan that was reviewed: sealed to a stack, commit and state, and compared with a fresh one.

A sealed plan stays a plan of the engine, with a section of ours. Its secrets are encrypted, each
time differently, so two plans are compared by keyed hashes of what is encrypted.

The engine enforces a plan only while it works, when some of it is done already. A kept plan is
therefore compared with a fresh one first, and the engine is held to the fresh one: so a run that
was killed can be continued, with less left to do than was reviewed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from infra.names import MADE_FOR, MARK
from infra.settings.parse import load_yaml, stack_path
from tpustack.ci.pipeline import head_commit
from tpustack.ci.result import Run
from tpustack.engine.stack import Done, Stack
from tpustack.errors import TpustackError

PLAN_TAG = "tpustack:plan"
"""What a deployment notes with a stack: the digest of the plan that it is about to carry out."""


_SECTION = "tpu-stack"
# How the secrets are encrypted. Who decrypts is said by the checkout alone (`secretsprovider`).
_ENCRYPTION = ("encryptionsalt", "encryptedkey")
Decrypt = Callable[[Sequence[str], Mapping[str, str]], Sequence[str]]
# The engine's marks of a value that it will know only later, and of a secret or a file.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SECRET = "4dabf18193072939515e22adb298388d"
Plan = Mapping[str, Any]
# What a goal says apart from what is done.
_DIFFS = ("inputDiff", "outputDiff")
_IN_ANY_ORDER = ("dependencies", "propertyDependencies")
# Of a difference: where it begins, and how something differs.
_LEVELS = ("", "adds", "updates", "deletes")


def plan_path(folder: Path, stack: str) -> Path:
    """Return the path of a stack's plan."""
    return folder / f"{stack}.plan.json"


def seal_preview(run: Run, path: Path, stack: str, done: Done) -> Sealed:
    """Seal the plan that a preview has written, and return it."""
    encryption = encryption_of(stack_path(run.root, stack))
    write_seal(path, Seal(stack, head_commit(run.root), done.state, encryption))
    return read_plan(path)


def reviewed_plan(folder: Path, stack: str) -> Sealed | None:
    """Return the plan that was reviewed; None if nothing was planned for this stack."""
    path = plan_path(folder, stack)
    return read_plan(path) if path.exists() else None


def mismatch(reviewed: Sealed, stack: str, commit: str, state: str, noted: str | None) -> str:
    """Return why a plan is not one of this stack, commit and state; empty if it is.

    Args:
        state: the digest of the state.
        noted: the digest of the plan that was carried out last, perhaps in part.
    """
    made = reviewed.seal
    if made.stack != stack:
        return f"it is a plan of stack {made.stack}"
    if made.commit != commit:
        return f"it was made from commit {made.commit or '(none)'}, and this is {commit or 'none'}"
    if made.state != state and noted != reviewed.digest:
        return "the state is not the one that it was made from: something else was deployed since"
    return ""


def unreviewed_steps(
    run: Run, engine: Stack, fresh: Sealed, reviewed: Sealed | None, *, resumed: bool = False
) -> list[str]:
    """Return what would be done now and was not reviewed, a line each."""
    if reviewed is None:
        return surplus(fresh.steps, {})
    file = stack_path(run.root, engine.name).read_text(encoding="utf-8")
    provider = load_yaml(file).get("secretsprovider")
    now, then = comparable(
        fresh, reviewed, lambda texts, how: engine.decrypted(texts, how, provider)
    )
    return surplus(now, then, resumed=resumed)


def does_not_fit(stack: str, why: str) -> str:
    """Return the refusal of a plan."""
    return (
        f"the reviewed plan of stack {stack} no longer fits: {why}\nNothing was changed. Preview "
        "again, have the new plan reviewed, and deploy that."
    )


def goes_beyond(stack: str, more: Sequence[str]) -> str:
    """Return the refusal of a plan with the steps that were not reviewed."""
    lines = "\n".join(f"  - {line}" for line in more)
    why = "since the review, something else was deployed or changed. Now this would be done, too:"
    return does_not_fit(stack, f"{why}\n{lines}")


@dataclass(frozen=True)
class Seal:
    """Where a plan is from.

    Attributes:
        commit: the commit that it was made from; empty outside git.
        state: the digest of the state that it starts from.
        encryption: what the stack's key needs to decrypt the plan's secrets.
    """

    stack: str
    commit: str
    state: str
    encryption: Mapping[str, str]


@dataclass(frozen=True)
class Sealed:
    """A plan that was read: its steps by URN, where it is from, and the digest of all of it."""

    steps: Plan
    seal: Seal
    digest: str


class _Step(BaseModel):
    """What is compared of a resource."""

    steps: list[str] | None = None
    goal: dict[str, Any] | None = None


_SEAL, _STEPS = TypeAdapter(Seal), TypeAdapter(dict[str, _Step])


def encryption_of(stack_file: Path) -> dict[str, str]:
    """Return what a stack file says about its encryption; the engine has filled it in."""
    document = load_yaml(stack_file.read_text(encoding="utf-8"))
    return {name: document[name] for name in _ENCRYPTION if document.get(name)}


def write_seal(path: Path, seal: Seal) -> None:
    """Write into the engine's plan where it is from."""
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, _SECTION: asdict(seal)}), encoding="utf-8")


def read_plan(path: Path) -> Sealed:
    """Read a sealed plan. Raises TpustackError if the file is none."""
    try:
        content = path.read_bytes()
        document = json.loads(content)
        found = _STEPS.validate_python(document["resourcePlans"])
        steps = {urn: each.model_dump() for urn, each in found.items()}
        made = _SEAL.validate_python(document[_SECTION])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TpustackError(f"{path} is no plan of `tpustack ci preview`: {error!r}") from None
    return Sealed(steps, made, hashlib.sha256(content).hexdigest())


def comparable(fresh: Sealed, reviewed: Sealed, decrypt: Decrypt) -> tuple[Plan, Plan]:
    """Return the steps of both with keyed hashes in the place of secrets."""
    key = secrets.token_bytes(32)
    return _hashed(fresh, key, decrypt), _hashed(reviewed, key, decrypt)


def _hashed(plan: Sealed, key: bytes, decrypt: Decrypt) -> Plan:
    found = sorted(set(_ciphertexts(plan.steps)))
    if not found:
        return plan.steps
    texts = decrypt(found, plan.seal.encryption)
    hashes = {
        ciphertext: hmac.new(key, text.encode(), "sha256").hexdigest()
        for ciphertext, text in zip(found, texts, strict=True)
    }
    replaced: Plan = _replaced(plan.steps, hashes)
    return replaced


def _ciphertexts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if SECRET in value and isinstance(value.get("ciphertext"), str):
            yield value["ciphertext"]
        else:
            for each in value.values():
                yield from _ciphertexts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _ciphertexts(each)


def _replaced(value: Any, hashes: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        if value.get("ciphertext") in hashes and SECRET in value:
            return {SECRET: hashes[value["ciphertext"]]}
        return {name: _replaced(each, hashes) for name, each in value.items()}
    return [_replaced(each, hashes) for each in value] if isinstance(value, list) else value


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
    kept = {name: value for name, value in goal.items() if name not in _DIFFS}
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
        # Encrypted differently each time, so they can't be compared.
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
