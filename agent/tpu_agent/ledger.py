"""What became of the TPUs, next to what the trainer writes of itself.

Recovery and limits tell the ledger what they have seen and done. The trainer reads nothing of it;
`tpustack goodput` uses it to split the time in which no trainer ran.
"""

import socket
import threading
from collections.abc import Callable, Iterable

from tpu_core import paths, records, times
from tpu_core.bucket import Bucket
from tpu_core.google import Json
from tpu_core.tpu import Phase, phase_of

# A sign of life: for how long the last state is known to have held if the machine is killed.
_SIGN_SECONDS = 300.0
# A file is written whole at each change, so a new one begins after this many.
_MOST_EVENTS = 500
_LONGEST_CAUSE = 200
_STATES: dict[Phase, str] = {
    "ready": "ready",
    "waiting": "queued",
    "coming": "provisioning",
    "maintenance": "recovering",
    "leaving": "recovering",
    "lost": "recovering",
    "stopped": "stopped",
}


class Ledger:
    """One file of the job's ledger, `jobs/JOB/ledger/tpus-BEGIN-MACHINE.json`.

    It never stands in the agent's way: what can't be written is written later. Any thread may use
    it.
    """

    def __init__(
        self, bucket: Bucket, job: str, now: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._bucket, self._folder, self._now, self._say = bucket, paths.ledger(job), now, say
        self._machine, self._lock = socket.gethostname(), threading.Lock()
        self._states: dict[str, tuple[str, str]] = {}
        self._events: list[Json] = []
        self._path, self._written, self._changed, self._refused = "", 0.0, False, ""

    def saw(self, tpu: str, state: str | None) -> None:
        """Note a TPU's state, None if it is gone."""
        phase = "deleting" if state is None else phase_of(state)
        with self._lock:
            known, cause = self._states.get(tpu, ("", ""))
            if phase in _STATES:
                # Why a TPU is recreated stays known until it is READY.
                causes = {"READY": "", "CREATING": cause}
                self._note(tpu, _STATES[phase], causes.get(str(state), str(state)))
            # What the agent deletes is on its way back; what a person deletes is meant to go.
            elif phase == "deleting" and known == "ready":
                self._note(tpu, "absent", "")
            self._keep()

    def saw_request(self, tpus: Iterable[str], phase: Phase, state: str) -> None:
        """Note the state of a queued resource whose TPUs are not there."""
        with self._lock:
            for tpu in tpus if phase in _STATES else ():
                # A TPU itself says why it was lost, and both are looked up in turns.
                if self._states.get(tpu, ("", ""))[0] != _STATES[phase]:
                    self._note(tpu, _STATES[phase], state)
            self._keep()

    def removed(self, tpus: Iterable[str], *, comes_back: bool) -> None:
        """Note that the agent deletes or stops TPUs, and whether it recreates them."""
        self._set(tpus, "recovering" if comes_back else "stopped", None)

    def creating(self, tpus: Iterable[str]) -> None:
        """Note that the agent creates TPUs."""
        self._set(tpus, "provisioning", None)

    def refused(self, tpus: Iterable[str], cause: str) -> None:
        """Note that Google does not create TPUs."""
        self._set(tpus, "recovering", cause[:_LONGEST_CAUSE])

    def _set(self, tpus: Iterable[str], state: str, cause: str | None) -> None:
        with self._lock:
            for tpu in tpus:
                known = self._states.get(tpu, ("", ""))[1]
                self._note(tpu, state, known if cause is None else cause)
            self._keep()

    def _note(self, tpu: str, state: str, cause: str) -> None:
        if self._states.get(tpu) == (state, cause):
            return
        self._states[tpu] = (state, cause)
        if len(self._events) >= _MOST_EVENTS:
            self._path = ""
        if not self._path:
            self._path = f"{self._folder}/tpus-{times.timestamp(self._now())}-{self._machine}.json"
            self._events = [self._event(known) for known in sorted(self._states)]
        else:
            self._events.append(self._event(tpu))
        self._changed = True

    def _event(self, tpu: str) -> Json:
        state, cause = self._states[tpu]
        return {"at": round(self._now(), 3), "tpu": tpu, "state": state, "cause": cause}

    def _keep(self) -> None:
        """Write what is new at once, a sign of life from time to time."""
        seen = self._now()
        if not self._events or (not self._changed and seen - self._written < _SIGN_SECONDS):
            return
        content = {"machine": self._machine, "seen": round(seen, 3), "events": self._events}
        self._written, self._changed = seen, False
        try:
            self._bucket.write(self._path, records.dump(content))
        except OSError as error:
            # The next look brings it.
            self._changed = True
            if self._refused != str(error):
                self._say(f"the ledger could not be written: {error}")
            self._refused = str(error)
        else:
            self._refused = ""
