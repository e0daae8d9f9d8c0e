"""The TPU that the jobs run on: whether it is ready, and whether it is still the same."""

from __future__ import annotations

from collections.abc import Callable

from infra.startup.agent.google import Call, Json, message
from infra.startup.agent.tpunames import TPU, Place, look_up, version

from .variables import Tpu

_GONE = ("PREEMPTED", "TERMINATED", "DELETING")


class Tpus:
    """Looks the TPU up.

    Args:
        place: where it is.
        name: what it is called.
        call: calls Google as the machine's account.
        want: says that a job wants a TPU that is gone: a limit may have deleted it.
        is_here: whether this machine is one of its workers.
    """

    def __init__(
        self, place: Place, name: str, call: Call, want: Callable[[], None], *, is_here: bool
    ) -> None:
        self._want, self._has_wanted = want, False
        self._place, self._name, self._call, self._is_here = place, name, call, is_here
        self.why_not = ""

    def ready(self) -> Tpu | None:
        """Return the TPU; None if it can't be used now, and `why_not`. Raises OSError."""
        here, node = self._node()
        state = str(node.get("state")) if node else "gone"
        if node is None or state != "READY":
            self.why_not = f"the TPU {self._name} is {state}"
            return None
        ends = node.get("networkEndpoints") or []
        return Tpu(
            name=self._name,
            zone=here.zone,
            project=self._place.project,
            hosts=tuple(str(end["ipAddress"]) for end in ends if end.get("ipAddress")),
            created=str(node.get("createTime", "")),
            port=next((int(end["port"]) for end in ends if end.get("port")), Tpu.port),
            is_here=self._is_here,
        )

    def why_lost(self, created: str) -> str | None:
        """Return why the TPU that was made at that time is gone; None if it is there."""
        _, node = self._node()
        if node is None:
            return f"the TPU {self._name} is gone"
        if node.get("state") in _GONE:
            return f"the TPU {self._name} is {node['state']}"
        if node.get("createTime", "") != created:
            return f"the TPU {self._name} was made anew"
        return None

    def wake(self) -> None:
        """Start a TPU that was stopped because nothing ran, or want it back. Raises OSError."""
        here, node = self._node()
        if node is None and not self._has_wanted:
            self._want()
        self._has_wanted = node is None
        if node is not None and node.get("state") == "STOPPED":
            url = f"{TPU}{version(node)}/{here.node(self._name)}:start"
            status, answer = self._call("POST", url, "{}")
            if status >= 300:
                raise OSError(f"{self._name} can't be started: {message(answer)}")

    def _node(self) -> tuple[Place, Json | None]:
        here, status, node = look_up(self._place, self._call, self._name)
        if status not in (200, 404):
            raise OSError(f"HTTP status {status} for {self._name}: {message(node)}")
        return here, node if status == 200 else None
