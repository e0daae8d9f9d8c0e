"""Takes the TPU down when its time is up, or when nothing has trained for too long.

A failure stops nothing else: each TPU is looked up and taken down separately, and what can't be
looked up counts as it was last known.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tpu_agent.ledger import Ledger
from tpu_core import paths, times
from tpu_core.bucket import Bucket
from tpu_core.google import Client, Json, message
from tpu_core.memory import birth
from tpu_core.tpu import TPU, Place, is_queued, look_up, short_name, start, state_of, version

# How long an idle TPU stays if the note that lets the next job recreate it can't be written.
_PATIENCE = 600.0
# Objects of jobs that one look reads, twenty pages: there may be a million.
_AT_ONCE = 20_000


class LimitEnforcer:
    """Look at the TPUs, one round at a time.

    Args:
        place: where they are.
        client: calls Google as the machine's account.
        training: whether the trainer runs on this machine now.
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
        tell: tells people elsewhere, and never fails.
        sleep: is called before what nothing runs on is deleted. Raises OSError.
        ledger: is told what was seen and done.
    """

    def __init__(
        self,
        place: Place,
        client: Client,
        training: Callable[[], bool],
        now: Callable[[], float],
        say: Callable[[str], None],
        tell: Callable[[str], None] = lambda text: None,
        sleep: Callable[[], None] = lambda: None,
        ledger: Ledger | None = None,
    ) -> None:
        self._tell, self._sleep, self._ledger = tell, sleep, ledger
        self._place, self._call, self._training = place, client.call, training
        self._now, self._say = now, say
        self._bucket = Bucket(place.bucket, client.send)
        self._busy = now()
        self._asked: Json | None = None
        self._remembered: Json = {}
        self._traces: Iterator[float] | None = None
        self._noted: set[tuple[str, ...]] = set()
        self._failed: list[str] = []
        self._said, self._ended = "", False

    def look(self, limits: Mapping[str, Any]) -> bool:
        """Do one round. Return whether TPUs were deleted because their time was up.

        Raises OSError in the end if something failed.
        """
        self._failed, nodes = [], list[Json]()
        for name in limits["tpus"]:
            try:
                node = self._node(name)
                if self._ledger:
                    self._ledger.saw(name, state_of(node) if node else None)
                nodes += [node] if node else []
            except OSError as error:
                self._failed.append(str(error))
        over = self._over(nodes, limits)
        left = [node for node in nodes if state_of(node) != "DELETING"]
        if over:
            # `tpustack ci limits` may have begun, or an agent before this one.
            why = f"its {limits['timeToLiveHours']:g} hours are over"
            self._delete((node for node in over if node in left), why)
        else:
            self._look_whether_idle(nodes, limits)
        # The answer to a deletion may be lost: it has ended all the same.
        self._ended = bool(over) or (self._ended and not left)
        if self._failed:
            raise OSError("; ".join(self._failed))
        return self._ended

    def _look_whether_idle(self, nodes: Sequence[Json], limits: Mapping[str, Any]) -> None:
        # Not later than now, as a clock that was wrong would have it.
        self._busy = min(self._busy, self._now())
        # What is being made, preempted or stopped is not idle; it counts from READY on.
        ready = [node for node in nodes if state_of(node) == "READY"]
        if self._training() or not (ready or self._failed):
            self._busy, self._asked, self._traces = self._now(), None, None
            self._noted.clear()
            return
        if self._failed:
            return
        minutes = self._idle_minutes(limits)
        if minutes is None or not self._is_idle(minutes * 60):
            return
        why = f"it was idle for {minutes:g} minutes"
        alone = [node for node in ready if len(node.get("networkEndpoints", [])) == 1]
        stays = [node for node in alone if not is_queued(node)]
        for node in stays:
            self._act([node], "stopped", why, "POST", f"{_path(node)}:stop", "{}")
        if gone := [node for node in ready if node not in stays]:
            self._let_sleep(self._busy + minutes * 60)
            self._delete(gone, why)
        if not self._failed:
            self._busy = self._now()

    def _let_sleep(self, since: float) -> None:
        try:
            self._sleep()
        except Exception as error:
            if self._now() < since + _PATIENCE:
                raise
            self._say(f"the TPU is deleted, but no job will recreate it: {error}")

    def wake(self, limits: Mapping[str, Any]) -> None:
        """Start TPUs that were stopped: there is something to train. Raises OSError."""
        for name in limits["tpus"]:
            place, status, node = look_up(self._place, self._call, name)
            if status == 200 and state_of(node) == "STOPPED":
                self._say(f"starting {name}, which was stopped")
                start(self._call, place, name, node)

    def _node(self, name: str) -> Json | None:
        _, status, node = look_up(self._place, self._call, name)
        if status not in (200, 404):
            raise OSError(f"HTTP status {status} for {name}: {message(node)}")
        return node if status == 200 else None

    def _over(self, nodes: Iterable[Json], limits: Mapping[str, Any]) -> list[Json]:
        """Return the TPUs whose time is up, counted from the first one that they replace."""
        hours = limits.get("timeToLiveHours")
        if hours is None:
            return []
        if "recovery" in limits:
            try:
                self._remembered = self._bucket.read_json(paths.STATE)[0] or self._remembered
            except Exception as error:  # Of whatever kind: no object in a bucket ends a limit.
                if self._said != str(error):
                    self._said = str(error)
                    self._say(f"the TPUs' ages could not be updated: {error}")
        since, known = self._now() - hours * 3600, self._remembered
        return [
            node
            for node in nodes
            if node.get("createTime")
            and state_of(node) != "CREATING"
            and birth(known, limits.get("request", short_name(node)), node) <= since
        ]

    def _idle_minutes(self, limits: Mapping[str, Any]) -> float | None:
        """Return the shorter one of what the stack says and what the last job was sent with."""
        if self._asked is None:
            # It changes only together with a job.
            try:
                self._asked = self._bucket.read_json(paths.IDLE_STOP)[0] or {}
            except OSError:
                if "idleMinutes" not in limits:
                    raise
        asked = (self._asked or {}).get("minutes")
        # All who may submit jobs may write that object; the stack's own limit was checked.
        sound = isinstance(asked, int | float) and asked >= 1
        found = (limits.get("idleMinutes"), asked if sound else None)
        return min((minutes for minutes in found if minutes is not None), default=None)

    def _is_idle(self, limit: float) -> bool:
        """Look at more of what jobs have written: training elsewhere leaves traces there."""
        if self._now() < self._busy + limit:
            return False
        traces, self._traces = self._traces or self._written(), None
        for number, written in enumerate(traces, start=1):
            self._busy = max(self._busy, written)
            if self._now() < self._busy + limit:
                return False
            if number == _AT_ONCE:
                self._traces = traces
                return False
        return True

    def _written(self) -> Iterator[float]:
        """Yield when each object of a job was written."""
        for item in self._bucket.items(paths.JOBS):
            # The agent's own ledger does not show that a trainer runs.
            if "/ledger/tpus-" not in item.path:
                yield item.updated

    def _delete(self, nodes: Iterable[Json], why: str) -> None:
        # What came out of the queue goes with its request, which may have asked for several.
        groups: dict[str, list[Json]] = {}
        for node in nodes:
            queued = is_queued(node)
            path = f"v2/{node['queuedResource']}?force=true" if queued else _path(node)
            groups.setdefault(path, []).append(node)
        for path, group in sorted(groups.items()):
            self._act(group, "deleted", why, "DELETE", path, None)

    def _act(
        self, nodes: Sequence[Json], what: str, why: str, method: str, path: str, body: str | None
    ) -> None:
        """Do it, then say that it was done, or once why it could not be."""
        try:
            self._must(method, path, body)
        except OSError as error:
            self._failed.append(str(error))
            for node in nodes:
                self._note(node, f"could not be {what} ({why}): {error}", f"not {what}: {why}")
        else:
            if self._ledger:
                self._ledger.removed(map(short_name, nodes), comes_back=False)
            for node in nodes:
                self._note(node, f"is {what}: {why}", f"{what}: {why}")

    def _must(self, method: str, path: str, body: str | None) -> None:
        status, answer = self._call(method, TPU + path, body)
        # 404: someone else was faster.
        if status >= 300 and status != 404:
            raise OSError(f"HTTP status {status} for {method} {path}: {message(answer)}")

    def _note(self, node: Json, text: str, key: str) -> None:
        """Tell people once what has become of a TPU."""
        name = short_name(node)
        known = name, str(node.get("createTime")), key
        if known in self._noted:
            return
        self._noted.add(known)
        text = f"{name} {text}"
        self._say(text)
        path = f"limits/{times.timestamp(self._now())}-{name}.txt"
        try:
            self._bucket.write(path, f"{times.timestamp(self._now())} {text}\n".encode())
        except OSError as error:
            self._say(f"cannot write {path}: {error}")
        self._tell(text)


def _path(node: Json) -> str:
    return f"{version(node)}/{node['name']}"
