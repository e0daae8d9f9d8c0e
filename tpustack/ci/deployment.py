"""`tpustack ci preview` and `deploy`: shows what a change would do, and does what was reviewed.

A plan that was reviewed stays a plan of the engine, with a section of ours that seals it to a
stack, a commit and a state. Its secrets are encrypted, each time differently, so two plans are
compared by keyed hashes of what is encrypted.

The engine enforces a plan only while it works, when some of it is done already. A kept plan is
therefore compared with a fresh one first, and the engine is held to the fresh one: so a run that
was killed can be continued, with less left to do than was reviewed.
"""

import hashlib
import hmac
import json
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, TypeAdapter

from tpu_core.words import money
from tpu_infra import cost, names
from tpu_infra.catalog import Catalog
from tpu_infra.settings import StackSettings, parse
from tpu_infra.settings.base import SettingsError
from tpustack.ci import drift, forge, pipeline, result
from tpustack.ci.result import Outcome, Result, Run
from tpustack.cloud.google import require_project
from tpustack.engine.backend import Backend
from tpustack.engine.stack import NOTHING, Done, Stack
from tpustack.errors import TpustackError
from tpustack.project import read_yaml

PLAN_TAG = "tpustack:plan"
"""What a deployment notes with a stack: the digest of the plan that it is about to carry out."""
_NEW = "The stack is new, so every resource will be created."


@dataclass(frozen=True)
class Preview:
    """How to preview.

    Attributes:
        base: what git calls the state before the change; the cost is compared with it.
        refresh: look at what the cloud has, not only at what the state says.
        reviewed: the folder of plans that were reviewed; nothing beyond them may be planned.
        note: what a reader should know of every stack.
    """

    base: str | None = None
    refresh: bool = False
    reviewed: Path | None = None
    note: str = ""


def preview(run: Run, stacks: Sequence[str], how: Preview) -> list[Result]:
    """Preview stacks side by side and keep their plans.

    Neither the state nor the cloud is written: the account that previews may only read both.
    """
    known = run.backend.stacks()
    return result.in_parallel(stacks, lambda stack: _preview(run, stack, stack in known, how))


def _preview(run: Run, stack: str, known: bool, how: Preview) -> Result:
    settings = result.checked_settings(run.root, stack, run.catalog, run.backend.environment)
    require_project(settings.project)
    # Else a plan of an earlier run would pass for this one's if this preview fails.
    plan_path(run.output, stack).unlink(missing_ok=True)
    file, before = parse.stack_path(run.root, stack), None
    if known and how.base is None:
        before = file.read_text(encoding="utf-8")
    elif known and how.base:
        before = pipeline.file_at(run.root, how.base, f"stacks/{file.name}")
    change = cost_change(stack, before, settings, run.catalog)
    notes = [how.note] if how.note else []
    if known:
        return _planned(run, run.backend, stack, how, change).noting(*notes)
    # The previewer's account can't write to the backend, so a new stack is previewed in a folder.
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = run.backend.elsewhere(Path(folder))
        elsewhere.create(stack)
        new = replace(how, refresh=False)
        return _planned(run, elsewhere, stack, new, change).noting(_NEW, *notes)


def _planned(
    run: Run, backend: Backend, stack: str, how: Preview, change: result.CostChange
) -> Result:
    engine, path = backend.stack(stack), plan_path(run.output, stack)
    done = engine.preview(path, run.line(stack), refresh=how.refresh)
    found = result_of(stack, done, change)
    if found.outcome not in (Outcome.CHANGES, Outcome.NO_CHANGE):
        return found
    fresh = _sealed(run, path, stack, done)
    if not how.reviewed or found.outcome is not Outcome.CHANGES:
        return found
    if more := _unreviewed(run, engine, fresh, _kept(how.reviewed, stack)):
        # A plan that is kept counts as one to review, and this one was refused.
        path.unlink()
        return replace(found, outcome=Outcome.FAILURE, problem=_goes_beyond(stack, more))
    return found


def result_of(stack: str, done: Done, change: result.CostChange | None = None) -> Result:
    """Turn the engine's report on a preview or an update into the stack's result."""
    events = done.events
    if any(violation.mandatory for violation in events.violations):
        # When a rule refuses, the engine itself says only that the preview failed.
        outcome, problem = Outcome.POLICY, "\n".join(events.errors)
    elif done.failure:
        outcome, problem = Outcome.FAILURE, done.failure
    else:
        outcome, problem = Outcome.CHANGES if events.changes else Outcome.NO_CHANGE, ""
    violations = tuple(events.violations)
    return Result(
        stack, outcome, events.changes, violations, change, problem, unfinished=events.failed
    )


def cost_change(
    stack: str, before: str | None, after: StackSettings, catalog: Catalog
) -> result.CostChange:
    """Return the hourly cost with the stack file as it was (its text, if any) and as it is."""
    now = cost.of_stack(after, stack, catalog).configured
    settings = _settings(stack, before)
    if settings is None:
        return result.CostChange(None, _shown(now), f"+{_shown(now)}")
    then = cost.of_stack(settings, stack, catalog).configured
    change = now.hour - then.hour
    sign = "" if not change else "-" if change < 0 else "+"
    difference = f"{sign}{money(abs(change), 4)}"
    complete = now.complete and then.complete
    return result.CostChange(_shown(then), _shown(now), difference if complete else None)


def _settings(stack: str, text: str | None) -> StackSettings | None:
    """Return what a file said, which may have been wrong at the time."""
    try:
        document = parse.load_yaml(text) if text else None
        config = document.get("config") if isinstance(document, dict) else None
        return parse.parse(config, stack) if isinstance(config, dict) else None
    except (yaml.YAMLError, SettingsError):
        return None


def _shown(total: cost.Total) -> str:
    amount = money(total.hour, 4)
    return amount if total.complete else f"over {amount}"


@dataclass(frozen=True)
class Deployment:
    """How to deploy.

    Attributes:
        plans: the folder of the reviewed plans; None: what a preview says now is deployed.
        refresh: take what the cloud has into the state first, so that drift is repaired.
        tags: noted with a stack that is made.
    """

    plans: Path | None = None
    refresh: bool = False
    tags: dict[str, str] | None = None


def deploy(run: Run, stacks: Sequence[str], how: Deployment) -> Iterator[Result]:
    """Deploy one stack after the other; after one that failed, none of the rest.

    The order is that of stacks/pipeline.yaml: what fails in dev must not reach prod.
    """
    known = run.backend.stacks()
    stopped = ""
    for stack in stacks:
        if stopped:
            yield result.failed(stack, f"not deployed, because stack {stopped} failed before it")
            continue
        done = result.explained(stack, lambda: _Deploy(run, stack, how).deploy(stack in known))  # noqa: B023
        stopped = "" if done.outcome in (Outcome.NO_CHANGE, Outcome.CHANGES) else stack
        yield done


def ready(backend: Backend, stack: str, tags: Mapping[str, str], *, known: bool) -> None:
    """Make a stack unless it is known, and note its tags, of which a killed run noted some."""
    if not known:
        backend.create(stack)
    if tags and not tags.keys() <= backend.tags(stack).keys():
        backend.tag(stack, **tags)


class _Deploy:
    """One stack's deployment; a run that was killed at any point is continued by the next one.

    Attributes:
        reviewed: the plan that may be carried out; None without one.
        resumed: whether an earlier run has carried out a part of it.
    """

    def __init__(self, run: Run, stack: str, how: Deployment) -> None:
        self.run, self.stack, self.how = run, stack, how
        self.line = run.line(stack)
        self.engine = run.backend.stack(stack)
        self.repair = self.engine.recovery(self.line, forge.has_ended)
        self.reviewed = how.plans and _kept(how.plans, stack)
        self.resumed = False

    def deploy(self, known: bool) -> Result:
        run, stack, how = self.run, self.stack, self.how
        settings = result.checked_settings(run.root, stack, run.catalog, run.backend.environment)
        require_project(settings.project)
        if self.reviewed and (problem := self._mismatch(self.reviewed, known)):
            return result.failed(stack, _does_not_fit(stack, problem))
        # Tags before resources: the sweeper takes a request's stack without them for an empty one.
        ready(run.backend, stack, how.tags or {}, known=known)
        self.repair.take_up()
        if how.refresh:
            done = self.repair.when_unlocked(lambda: self.engine.reread(self.line))
            if done.failure:
                return result.failed(stack, done.failure, *self.repair.notes)
            self.repair.notes += drift.notes_on(drift.left_alone(run.root, stack, done.events))
        with tempfile.TemporaryDirectory() as folder:
            found = self._update(plan_path(Path(folder), stack))
        return found.noting(*self.repair.notes)

    def _update(self, path: Path) -> Result:
        """Make a fresh plan, and deploy it if it does nothing that was not reviewed."""
        # Without a refresh: where one is asked for, `deploy` has written what it found.
        planned = self.engine.preview(path, self.line, refresh=False)
        found = result_of(self.stack, planned)
        if found.outcome is not Outcome.CHANGES:
            return found
        if self.how.plans:
            fresh, then = _sealed(self.run, path, self.stack, planned), self.reviewed or None
            if more := _unreviewed(self.run, self.engine, fresh, then, resumed=self.resumed):
                name = plan_path(Path(), self.stack)
                note = f"The reviewed plans don't include `{name}`, so nothing may change."
                notes = [] if then else [note]
                return result.failed(self.stack, _goes_beyond(self.stack, more), *notes)
            if then and not self.resumed:
                # A killed run may be continued with this plan, although it moves the state.
                self.run.backend.tag(self.stack, **{PLAN_TAG: then.digest})
        self.run.report(f"{self.stack}: updating")
        done = self.repair.when_unlocked(lambda: self.engine.deploy(path, self.line))
        return result_of(self.stack, done)

    def _mismatch(self, reviewed: "Sealed", known: bool) -> str:
        state = self.engine.state() if known else NOTHING
        noted = self.run.backend.tags(self.stack).get(PLAN_TAG) if known else None
        self.resumed = state != reviewed.seal.state
        commit = pipeline.head_commit(self.run.root)
        return mismatch(reviewed, self.stack, commit, state, noted)


# The plan that was reviewed.

_SECTION = "tpu-stack"
# How the secrets are encrypted. Who decrypts is said by the checkout alone (`secretsprovider`).
_ENCRYPTION = ("encryptionsalt", "encryptedkey")
Decrypt = Callable[[Sequence[str], Mapping[str, str]], Sequence[str]]
# The engine's marks of a value that it will know only later, and of a secret or a file.
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SECRET = "4dabf18193072939515e22adb298388d"
Plan = Mapping[str, Any]


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


def plan_path(folder: Path, stack: str) -> Path:
    """Return the path of a stack's plan."""
    return folder / f"{stack}.plan.json"


def _kept(folder: Path, stack: str) -> Sealed | None:
    """Return the plan that was reviewed; None if nothing was planned for this stack."""
    path = plan_path(folder, stack)
    return read_plan(path) if path.exists() else None


def _sealed(run: Run, path: Path, stack: str, done: Done) -> Sealed:
    """Seal the plan that a preview has written, and return it."""
    encryption = encryption_of(parse.stack_path(run.root, stack))
    write_seal(path, Seal(stack, pipeline.head_commit(run.root), done.state, encryption))
    return read_plan(path)


def write_seal(path: Path, seal: Seal) -> None:
    """Write into the engine's plan where it is from."""
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, _SECTION: asdict(seal)}), encoding="utf-8")


def encryption_of(stack_file: Path) -> dict[str, str]:
    """Return what a stack file says about its encryption; the engine has filled it in."""
    document = read_yaml(stack_file)
    return {name: document[name] for name in _ENCRYPTION if document.get(name)}


def read_plan(path: Path) -> Sealed:
    """Read a sealed plan, which another job may have forged. Raises TpustackError."""
    try:
        content = path.read_bytes()
        document = json.loads(content)
        found = _STEPS.validate_python(document["resourcePlans"])
        steps = {urn: each.model_dump() for urn, each in found.items()}
        made = _SEAL.validate_python(document[_SECTION])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TpustackError(f"{path} isn't a plan of `tpustack ci preview`: {error!r}") from None
    return Sealed(steps, made, hashlib.sha256(content).hexdigest())


def mismatch(reviewed: Sealed, stack: str, commit: str, state: str, noted: str | None) -> str:
    """Return why a plan is not one of this stack, commit and state; empty if it is.

    Args:
        state: the digest of the state.
        noted: the digest of the plan that was carried out last, perhaps in part.
    """
    made = reviewed.seal
    if made.stack != stack:
        return f"it is for stack {made.stack}"
    if made.commit != commit:
        return f"it is for commit {made.commit or '(none)'}, and this is {commit or 'none'}"
    if made.state != state and noted != reviewed.digest:
        return "the state has changed, because something else was deployed since"
    return ""


def _unreviewed(
    run: Run, engine: Stack, fresh: Sealed, reviewed: Sealed | None, *, resumed: bool = False
) -> list[str]:
    """Return what would be done now and was not reviewed, a line each."""
    if reviewed is None:
        return surplus(fresh.steps, {})
    # The key is the checkout's: one that a plan names would get what the plan's secrets hold.
    provider = read_yaml(parse.stack_path(run.root, engine.name)).get("secretsprovider")
    now, then = comparable(
        fresh, reviewed, lambda texts, how: engine.decrypted(texts, how, provider)
    )
    return surplus(now, then, resumed=resumed)


def _does_not_fit(stack: str, why: str) -> str:
    return (
        f"the reviewed plan of stack {stack} no longer fits: {why}\nNothing was changed. Preview "
        "again, get the new plan reviewed, and deploy that."
    )


def _goes_beyond(stack: str, more: Sequence[str]) -> str:
    lines = "\n".join(f"  - {line}" for line in more)
    why = "something was deployed or changed since the review. These changes weren't reviewed:"
    return _does_not_fit(stack, f"{why}\n{lines}")


def comparable(fresh: Sealed, reviewed: Sealed, decrypt: Decrypt) -> tuple[Plan, Plan]:
    """Return the steps of both with keyed hashes in the place of secrets.

    The hashes are equal where the secrets are, and no message that names them shows any.
    """
    # A key for this comparison alone: without it, hashes of short secrets could be guessed.
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
    if _is_encrypted(value) and isinstance(value["ciphertext"], str):
        yield value["ciphertext"]
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _ciphertexts(each)


def _replaced(value: Any, hashes: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        if value.get("ciphertext") in hashes and SECRET in value:
            return {SECRET: hashes[value["ciphertext"]]}
        return {name: _replaced(each, hashes) for name, each in value.items()}
    return [_replaced(each, hashes) for each in value] if isinstance(value, list) else value


# What a goal says apart from what is done.
_DIFFS = ("inputDiff", "outputDiff")
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
    """Return what an update changes, and what the creation that it completes says of the same.

    The engine writes a creation as `adds` alone, an update as `adds`, `updates` and `deletes`.
    """
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


def _differing(now: Any, then: Any, path: str, resumed: bool) -> Iterator[str]:
    known_later = resumed and then == UNKNOWN and path not in _LEVELS
    if _is_encrypted(now) or _is_encrypted(then):
        # Encrypted differently each time, so they can't be compared.
        yield path
    elif now == then or known_later or _are_marks(now, then, path) or _are_same_files(now, then):
        return
    elif isinstance(now, dict) and isinstance(then, dict):
        for key in now.keys() | then.keys():
            below = key if path in _LEVELS else f"{path}.{key}"
            yield from _differing(now.get(key), then.get(key), below, resumed)
    else:
        yield path or "properties"


def _are_marks(now: Any, then: Any, path: str) -> bool:
    """Return whether it is the stack's mark: a new stack is previewed in another backend."""
    texts = (str(now), str(then))
    return path == f"labels.{names.MARK}" or all(text.startswith(names.MADE_FOR) for text in texts)


def _are_same_files(now: Any, then: Any) -> bool:
    """Return whether both are files with the same content: another job has it elsewhere."""
    if not isinstance(now, dict) or not isinstance(then, dict):
        return False
    marks = [(each.get(SECRET), each.get("hash")) for each in (now, then)]
    return marks[0] == marks[1] and None not in marks[0]


def _is_encrypted(value: Any) -> bool:
    return isinstance(value, dict) and SECRET in value and "ciphertext" in value
