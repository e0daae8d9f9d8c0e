"""Tell apart why the trainer has ended, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["", "preemption", "failure"]
Action = Literal["finish", "again", "wait", "rarely", "renew", "give up"]

_DONE, _WRONG_INPUT, _SAVED = 0, 2, 75
_KILLED = 128 + 9
# What another start seldom mends, so that a few tries are enough.
_STUBBORN = frozenset({"loss-diverged", "device-memory", "host-memory", "disk-full", "hung"})
MOST_IN_A_ROW = 3
# What may lie in a process of the TPU's hosts: TensorFlow keeps a token until its time is over, and
# an empty one for good. So many in a row are the TPU's fault, as far as anybody can tell.
_OF_THE_HOSTS = frozenset({"hung", "bucket-credentials"})
_FAULTS_OF_A_TPU = 2
# A person has to do something elsewhere, after which the trainer runs on this same machine.
_CURED_ELSEWHERE = frozenset(
    {
        *("version-mismatch", "libtpu-mismatch", "no-plug-in", "no-tpu-kernels"),
        *("permission", "missing-scope", "api-disabled", "quota", "billing"),
    }
)


@dataclass(frozen=True)
class Ending:
    """Why the trainer has ended, as far as it is known.

    Attributes:
        cause: in a word or two, such as `loss-diverged`.
        action: what the agent does.
        kind: the budget that it counts against; none for what is nobody's failure.
    """

    cause: str
    action: Action
    kind: Kind = "failure"


def ending_of(
    code: int, cause: str, *, memory_full: bool, in_a_row: int, recovered: bool
) -> Ending:
    """Return what an end means while the TPU is READY.

    Args:
        code: the exit code.
        cause: the trainer's own word for it, an ID of its catalog of errors; may be empty.
        memory_full: whether the kernel has killed something for want of memory meanwhile.
        in_a_row: how often the trainer has ended so, this time included.
        recovered: whether this agent can make the TPU anew.
    """
    if code == _DONE:
        return Ending("done", "finish", "")
    if code == _WRONG_INPUT:
        return Ending("wrong input", "give up", "")
    if code == _SAVED:
        return Ending("saved", "again", "")
    cause = cause_in_words(code, cause, memory_full=memory_full)
    if cause in _CURED_ELSEWHERE:
        return Ending(cause, "rarely")
    if cause in _OF_THE_HOSTS and recovered:
        return Ending(cause, "again" if in_a_row % _FAULTS_OF_A_TPU else "renew")
    if cause in _STUBBORN and in_a_row >= MOST_IN_A_ROW:
        return Ending(cause, "give up")
    return Ending(cause, "again")


def cause_in_words(code: int, cause: str, *, memory_full: bool) -> str:
    """Return the cause of an end; what the trainer said of it comes first."""
    if cause:
        return cause
    if code == _KILLED and memory_full:
        return "host-memory"
    return "killed" if code < 0 or code > 128 else "unknown"


def is_repeated(cause: str, before: str, *, further: bool) -> bool:
    """Return whether a failure is the one before over again.

    A disk that was full for a while in one week and in the next is none: the trainer got further. A
    TPU that is bad may let it do steps each time.
    """
    return cause == before and (cause in _OF_THE_HOSTS or not further)


@dataclass(frozen=True)
class TpuState:
    """What keeps a TPU from work: nothing, when `ending` is None.

    Attributes:
        ending: what the end of a trainer means meanwhile.
        said: for people, such as `t is PREEMPTED`.
    """

    ending: Ending | None
    said: str = ""


_STATES = {
    **dict.fromkeys(("PREEMPTED", "TERMINATED"), "preempted"),
    **dict.fromkeys(("REPAIRING", "REIMAGING", "RESTARTING"), "in maintenance"),
    **dict.fromkeys(("STOPPING", "STOPPED", "HIDING", "HIDDEN", "UNHIDING"), "stopped"),
    **dict.fromkeys(("CREATING", "STARTING"), "not ready yet"),
    "DELETING": "deleted",
}
_HEALTHS = {"UNHEALTHY_MAINTENANCE": "in maintenance"}
_CURES = {
    "preempted": "`tpustack recover` makes it anew, or set recovery.enabled",
    "stopped": "`gcloud compute tpus tpu-vm start NAME --zone ZONE` starts it",
    "deleted": "`pulumi up --refresh` makes it anew",
    "not ready yet": "",
    "in maintenance": "it comes back by itself",
}


def tpu_state(name: str, state: str | None, health: str, *, recovered: bool) -> TpuState:
    """Return what a TPU's state means for its trainer.

    Args:
        name: of the TPU.
        state: as the API says it; None if there is no such TPU.
        health: as the API says it; empty if it is not known.
        recovered: whether this agent makes lost TPUs anew.
    """
    shown = state or "gone"
    cause = "deleted" if state is None else _STATES.get(state, "")
    if state == "READY" and health in _HEALTHS:
        cause, shown = _HEALTHS[health], health
    if not cause:
        return TpuState(None)
    kind: Kind = "preemption" if cause == "preempted" else ""
    waits = f"{name} is {shown} ({cause}): the trainer waits until it is READY"
    cure = "" if recovered and cause in ("preempted", "deleted") else _CURES[cause]
    return TpuState(Ending(cause, "wait", kind), waits + (f"; {cure}" if cure else ""))
