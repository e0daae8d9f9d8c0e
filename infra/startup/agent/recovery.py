"""Make a TPU anew that Google has taken away, or that does not work any more.

Each look does one step for each TPU and never waits. What to do follows from what the API and the
bucket say, so that the agent may be killed at any point. It acts only within what the stack
declares: a TPU that somebody else has deleted, or that is not the stack's, is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .causes import Cause, cause_of
from .declaration import PATH, Declaration, read_declaration
from .google import TPU, Bucket, Call, Json, Place, message
from .memory import Memory

_LOST = ("PREEMPTED", "TERMINATED")
_PASSING = (
    *("CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING", "STOPPING", "DELETING"),
    *("STOPPED", "HIDING", "HIDDEN", "UNHIDING"),
)
_ILL = ("UNHEALTHY_TENSORFLOW", "TIMEOUT")
# Between two tries to make a TPU, doubled each time, with half of it left to chance.
_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 600.0
# So long a TPU may be ill before it is made anew, and a new one may need until it answers.
_PATIENCE, _FIRST_PATIENCE = 300.0, 1200.0


@dataclass(frozen=True)
class World:
    """What the agent needs beside Google, which tests replace.

    Attributes:
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
        silent: why no gRPC server answers at (host, port); None if one does.
        chance: a number from 0 to 1.
    """

    now: Callable[[], float]
    say: Callable[[str], None]
    silent: Callable[[str, int], str | None]
    chance: Callable[[], float]


class Recovery:
    """Looks at the TPUs, one round at a time."""

    def __init__(self, place: Place, call: Call, world: World) -> None:
        self._place, self._call, self._world = place, call, world
        self._bucket = Bucket(call, place.bucket)
        self._memory = Memory(self._bucket, world.now, world.say)
        self._ill: dict[str, float] = {}
        self._answered: set[str] = set()
        self._said: dict[str, str] = {}

    def look(self, names: Iterable[str], budgets: Mapping[str, int]) -> None:
        """Do one step for each TPU. Raises OSError if Google does not answer."""
        for name in names:
            self._look_at(name, budgets)

    def _look_at(self, name: str, budgets: Mapping[str, int]) -> None:
        node = self._node(name)
        if node is None:
            self._missing(name)
        elif node["state"] in _LOST:
            self._take_down(name, node, "preemption", f"it is {node['state']}", budgets)
        elif node["state"] == "READY":
            self._ready(name, node, budgets)
        elif node["state"] not in _PASSING:
            self._say_once(name, f"{name} is in the unknown state {node['state']}: left alone")

    def _node(self, name: str) -> Json | None:
        status, node = self._call("GET", f"{TPU}v2/{self._place.node(name)}", None)
        if status not in (200, 404):
            raise OSError(f"HTTP status {status} for {name}: {message(node)}")
        return node if status == 200 else None

    def _ready(self, name: str, node: Json, budgets: Mapping[str, int]) -> None:
        entry = self._memory.remaking.pop(name, None)
        if entry is not None:
            took = self._world.now() - entry["since"]
            self._memory.save()
            self._ill.pop(name, None)
            self._answered.discard(name)
            self._say_once(name, f"{name} is back after {took:.0f} s")
        why = self._why_ill(name, node)
        if why is None:
            self._answered.add(name)
            self._ill.pop(name, None)
            return
        since = self._ill.setdefault(name, self._world.now())
        patience = _PATIENCE if name in self._answered else _FIRST_PATIENCE
        if self._world.now() - since >= patience:
            self._take_down(name, node, "failure", f"it is READY, but {why}", budgets)

    def _why_ill(self, name: str, node: Json) -> str | None:
        """Return why a READY TPU does not work; its health may be missing (tensorflow/tpu#590)."""
        if node.get("health") in _ILL:
            return f"its health is {node['health']}"
        for worker in node.get("networkEndpoints", ()):
            host, port = worker.get("ipAddress"), int(worker.get("port") or 8470)
            if host and (why := self._world.silent(host, port)):
                return f"{host}:{port} does not answer ({why})"
        return None

    def _take_down(
        self, name: str, node: Json, kind: str, why: str, budgets: Mapping[str, int]
    ) -> None:
        """Delete what is left of a TPU: it holds quota and the name."""
        declared = self._declared(name)
        if declared is None:
            return
        if not declared.owns(name, node):
            self._say_once(name, f"{name} is not this stack's (its mark differs): left alone")
            return
        entry = self._memory.remaking.get(name)
        if entry is None or entry["created"] != node.get("createTime"):
            if self._memory.today(kind) >= budgets[kind]:
                self._say_once(
                    name,
                    f"{name} is given up: {why}, and it was the last of {budgets[kind]} of its "
                    f"kind ({kind}) in a day. Raise the stack's recovery budget, or run "
                    "`tpustack recover`",
                )
                return
            self._memory.add(kind, name, why)
            self._memory.remaking[name] = {
                "since": entry["since"] if entry else self._world.now(),
                "cause": why,
                "created": node.get("createTime"),
                "labels": node.get("labels", {}),
                "declared": declared.digest(name),
                "operation": None,
                "tries": 0,
                "notBefore": 0.0,
            }
            self._memory.save()
        self._say_once(name, f"{name} is deleted and made anew: {why}")
        status, answer = self._call("DELETE", f"{TPU}v2/{self._place.node(name)}", None)
        # 400 and 409: it is being deleted already, or an operation on it still runs.
        if status not in (200, 400, 404, 409):
            raise OSError(f"HTTP status {status} for the deletion of {name}: {message(answer)}")

    def _missing(self, name: str) -> None:
        """Create a TPU that this agent has deleted; another's deletion counts as meant."""
        entry = self._memory.remaking.get(name)
        if entry is None or self._world.now() < entry["notBefore"]:
            return
        if entry["operation"] and not self._is_over(name, entry):
            return
        declared = self._declared(name)
        if declared is None or declared.digest(name) != entry["declared"]:
            del self._memory.remaking[name]
            self._memory.save()
            self._say_once(name, f"{name} is left to the stack, which has changed meanwhile")
            return
        # Google's provider has labels of its own, which only the old TPU knew.
        body = {**declared.tpus[name], "labels": entry["labels"]}
        url = f"{TPU}v2/{self._place.parent}/nodes?nodeId={name}"
        status, answer = self._call("POST", url, json.dumps(body))
        if status == 200:
            entry["operation"] = answer.get("name")
            self._memory.save()
        elif status != 409:  # Somebody has made it meanwhile: the next look shows it.
            self._put_off(name, entry, cause_of(status, answer))

    def _is_over(self, name: str, entry: Json) -> bool:
        """Return whether the creation has ended without a TPU, of which the reason is not known."""
        status, operation = self._call("GET", f"{TPU}v2/{entry['operation']}", None)
        if status not in (200, 404):
            raise OSError(f"HTTP status {status} for {entry['operation']}: {message(operation)}")
        if status == 200 and not operation.get("done"):
            return False
        entry["operation"] = None
        if not operation.get("error") or status == 404:
            return True
        self._put_off(name, entry, cause_of(operation["error"].get("code", 0), operation))
        return False

    def _put_off(self, name: str, entry: Json, cause: Cause) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(entry["tries"], 10))
        pause *= 0.5 + 0.5 * self._world.chance()
        entry["tries"] += 1
        entry["cause"] = str(cause)
        # Where a person has to act first, it is enough to look rarely.
        entry["notBefore"] = self._world.now() + (pause if cause.passes else _LONGEST_PAUSE)
        self._memory.save()
        self._say_once(name, f"{name} is not made yet: {cause}")

    def _declared(self, name: str) -> Declaration | None:
        found = read_declaration(self._bucket)
        if found is None or name not in found.tpus:
            self._say_once(
                name,
                f"{name} is left alone: gs://{self._place.bucket}/{PATH} does not say what it is "
                "like. `pulumi up` writes it",
            )
            return None
        return found

    def _say_once(self, name: str, text: str) -> None:
        if self._said.get(name) != text:
            self._said[name] = text
            self._world.say(text)
