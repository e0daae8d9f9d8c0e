"""The trainer as the agent's child: start it, watch it, and act by the cause of its end.

Each look does one step and waits for nothing but Google's answers. Each step is written to the disk
before it is taken, so that an agent that was killed continues where it was.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tpu_agent.child import Child
from tpu_agent.jobs.hosts import Reports
from tpu_agent.jobs.queue import Outcome
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_core.contract import LOST_HOST, Environment
from tpu_core.records import Unreadable, dump, load, replace_file
from tpu_core.times import backoff
from tpu_core.tpu import Phase, phase_of

_FIRST_PAUSE, _LONGEST_PAUSE, _RARELY = 2.0, 300.0, 600.0
_LOOK, _IDLE, _WAIT, _RETRY = 1.0, 60.0, 3.0, 15.0
# After a resume the heartbeat is stale at first.
_HUNG_LOOKS = 60
# A host writes how it has ended a moment later than the others miss it.
_NEWS = 10.0
GRACE = 80.0
"""A preempted VM has 30 seconds, the trainer ends itself after 25; systemd kills after 90."""


class TrainerProcess(Child):
    """The trainer, which the start-up script orders with a file `order.json` in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._outcome, self._pulse = folder / "outcome.json", folder / "pulse"

    def order(self) -> dict[str, Any] | None:
        """Return what is ordered: `command`, `environment` and `finished`; None for nothing."""
        try:
            order: dict[str, Any] = json.loads((self.folder / "order.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return order

    def begin(
        self,
        number: int,
        order: Mapping[str, Any],
        environment: Mapping[str, str],
        arguments: Sequence[str],
    ) -> bool:
        """Start what is ordered, with more of both; return False if it runs already."""
        for path in (self._outcome, self._pulse):
            path.unlink(missing_ok=True)
        files = {
            Environment.OUTCOME: str(self._outcome),
            Environment.PULSE: str(self._pulse),
        }
        everything = {**os.environ, **order["environment"], **environment, **files}
        return self.start(number, [*order["command"], *arguments], everything)

    def end(self) -> None:
        """End it, as the machine goes down: it may save first."""
        self.send(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.send(signal.SIGKILL)

    def outcome(self, code: int) -> tuple[int, str, str]:
        """Return the exit code, the cause and the message, by the trainer's word if it left one."""
        try:
            outcome = json.loads(self._outcome.read_text("utf-8"))
            text = int(outcome["exitCode"]), str(outcome["cause"]), str(outcome["message"])
        except (OSError, ValueError, KeyError, TypeError):
            text = code, "", ""
        # Prefer the reported outcome unless the exit code contradicts it.
        return text if code in (-1, text[0]) else (code, "", "")

    def pulse(self) -> tuple[float, int]:
        """Return until when the trainer must have given another sign, and its step; -1: none."""
        try:
            deadline, step = self._pulse.read_text().split()
            return float(deadline), int(step)
        except (OSError, ValueError):
            return 0.0, -1


class Others:
    """The other hosts of a slice, as the trainer's agent on worker 0 has them run along.

    Args:
        store: the bucket.
        tpu: the slice.
        count: how many hosts it has.
        now: seconds.
    """

    def __init__(self, store: Bucket, tpu: str, count: int, now: Callable[[], float]) -> None:
        self._store, self._tpu, self._count, self._now = store, tpu, count, now
        self._start, self._reports = 0, Reports(store, "", now)

    def begin(self) -> int:
        """Have them start their trainers; return the number of this start. Raises OSError."""
        for item in [*self._store.items(paths.trainers(self._tpu))]:
            self._store.delete(item.path, item.generation)
        return self._store.write(paths.trainer_on_all_hosts(self._tpu), b"")

    def end(self, start: int) -> None:
        """Have them end their trainers. Raises OSError."""
        path = paths.trainer_on_all_hosts(self._tpu)
        if (found := self._store.look(path)) is not None and found.generation == start:
            self._store.delete(path, start)

    def failure(self, start: int, *, soon: bool) -> Outcome | None:
        """Return how a start failed on another host, if it did and it is time to look, or `soon`.

        Raises OSError.
        """
        if start != self._start:
            folder = paths.trainers(self._tpu, start)
            self._start, self._reports = start, Reports(self._store, folder, self._now)
        reports = self._reports
        return reports.failure(self._count) if soon else reports.look(self._count)


@dataclass(frozen=True)
class Surroundings:
    """What the trainer's loop needs besides its child, which tests replace.

    Attributes:
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
        tell: tells people elsewhere how the training has ended; it never fails.
        chance: a number from 0 to 1.
        tpu: what keeps the TPUs from work. Raises OSError.
        renew: recreates the TPUs, given why, where that is allowed. Raises OSError.
        going_down: whether this machine is being preempted. Raises OSError.
        budgets: failures and preemptions a day; None if none are set.
        finish: marks the job as finished, given where. Raises OSError.
        environment: more for the trainer's environment. Raises OSError.
        arguments: more for its command line, which overrides the order's. Raises OSError.
        oom_kills: how many processes the kernel has killed for lack of memory.
        others: the other hosts of a slice, on which the trainer runs too; None if there are none.
    """

    now: Callable[[], float]
    say: Callable[[str], None]
    tell: Callable[[str], None]
    chance: Callable[[], float]
    tpu: Callable[[], TpuState]
    renew: Callable[[str], None]
    going_down: Callable[[], bool]
    budgets: Callable[[], Mapping[str, int] | None]
    finish: Callable[[str], None]
    environment: Callable[[], Mapping[str, str]]
    arguments: Callable[[], Sequence[str]]
    oom_kills: Callable[[], int]
    others: Others | None = None


class Trainer:
    """One trainer, which the start-up script orders with a file `order.json` in `folder`."""

    def __init__(self, folder: Path, around: Surroundings) -> None:
        self._folder, self._around = folder, around
        self._child = TrainerProcess(folder)
        self._record = read_record(folder / "record.json")
        self._late = 0
        self._kill_at: float | None = None
        self._news_until: float | None = None
        self._said = ""
        self.running = self._child.running()
        """Whether it ran at the last look."""
        if self.running:
            around.say("the trainer is already running: another agent started it")

    def look(self) -> float:
        """Do one step; return after how many seconds to look again at the latest."""
        self.running = self._child.running()
        if self.running:
            self._watch()
            return _LOOK
        try:
            return self._next()
        except OSError as error:
            self._say_once(f"retrying: {error}")
            return _RETRY

    def stop(self) -> None:
        """End the trainer, as the machine goes down: it may save first."""
        self._child.end()

    def _next(self) -> float:
        record, now = self._record, self._around.now()
        if record.number > record.handled:
            return self._ended()
        order = None if record.over else self._child.order()
        if order is None:
            return _LOOK if not record.number else _IDLE
        # A pause that is longer than any was left by a clock that was wrong.
        if 0.0 < (left := record.not_before - now) <= _RARELY:
            return min(_WAIT, left)
        if record.renew:
            self._around.renew(record.renew)
            record.renew = ""
            self._save()
        if record.waiting and (tpu := self._around.tpu()).ending is not None:
            self._say_once(tpu.said)
            return _WAIT
        self._start(order)
        return _LOOK

    def _start(self, order: Mapping[str, Any]) -> None:
        more, arguments = self._around.environment(), self._around.arguments()
        record = self._record
        record.on_all_hosts = self._around.others.begin() if self._around.others else 0
        record.number += 1
        record.waiting, record.oom_kills = False, self._around.oom_kills()
        self._save()
        self._late, self._kill_at, self._news_until, self._said = 0, None, None, ""
        self.running = self._child.begin(record.number, order, more, arguments)

    def _watch(self) -> None:
        """End a trainer that is late by its own word: it says how long its next step may take.

        And one that has failed on another host, without which it can do no step.
        """
        if self._kill_at is not None:
            if time.monotonic() >= self._kill_at:
                self._child.send(signal.SIGKILL)
            return
        deadline, _ = self._child.pulse()
        self._late = self._late + 1 if deadline and self._around.now() > deadline else 0
        if self._late >= _HUNG_LOOKS:
            self._record.hung = self._record.number
            self._save()
            self._end_soon("the trainer hangs: no step before its deadline")
        elif failed := self._elsewhere(soon=False):
            self._end_soon(f"the trainer is ended on all hosts: {failed.said}")

    def _end_soon(self, why: str) -> None:
        self._around.say(why)
        self._child.send(signal.SIGTERM)
        self._kill_at = time.monotonic() + GRACE

    def _elsewhere(self, *, soon: bool) -> Outcome | None:
        """Return how the trainer failed on another host, if that is known."""
        others, start = self._around.others, self._record.on_all_hosts
        if others is None:
            return None
        try:
            return others.failure(start, soon=soon)
        except OSError as error:
            self._say_once(f"the other hosts can't be asked: {error}")
            return None

    def _ended(self) -> float:
        """Deal with an end, once; return after how many seconds to look again."""
        record, others = self._record, self._around.others
        ended = self._child.ended(record.number)
        outcome = self._outcome(ended.code) if ended else None
        if outcome and outcome[1] == LOST_HOST:
            self._news_until = self._news_until or time.monotonic() + _NEWS
            if time.monotonic() < self._news_until:
                return _LOOK
        if others is not None:
            others.end(record.on_all_hosts)
        if outcome:
            code, cause, text = outcome
            tpu = TpuState(None) if code in (0, 2, 75) else self._tpu()
            self._act(code, tpu.ending or self._judge(code, cause), tpu.said or text)
        record.handled = record.number
        self._save()
        return 0.0

    def _outcome(self, code: int) -> tuple[int, str, str]:
        """Return the exit code, the cause and the message: those of the host that failed first.

        A trainer that knows no cause of its own has been ended, or was left alone by the others.
        """
        known, cause, message = self._child.outcome(code)
        if self._record.hung == self._record.number:
            return known, "hung", message
        if known in (_DONE, _WRONG_INPUT) or cause not in ("", LOST_HOST):
            return known, cause, message
        failed = self._elsewhere(soon=True)
        if failed is None or failed.why == LOST_HOST:
            return known, cause, message
        cause = "" if failed.why == "exited" else failed.why
        return known if failed.code is None else failed.code, cause, failed.said

    def _tpu(self) -> TpuState:
        try:
            return self._around.tpu()
        except OSError as error:
            # The trainer may do without this question.
            self._say_once(f"the TPU's state is unknown: {error}")
            return TpuState(None)

    def _judge(self, code: int, cause: str) -> Ending:
        record = self._record
        memory_full = self._around.oom_kills() > record.oom_kills
        if code not in (0, 2, 75):
            name = cause_in_words(code, cause, memory_full=memory_full)
            step = self._child.pulse()[1]
            again = is_repeated(name, record.cause, further=step > record.step)
            record.in_a_row = record.in_a_row + 1 if again else 1
            record.cause, record.step = name, step
        recovered = self._around.budgets() is not None
        count = record.in_a_row
        return ending_of(code, cause, memory_full=memory_full, in_a_row=count, recovered=recovered)

    def _act(self, code: int, ending: Ending, message: str) -> None:
        record, now = self._record, self._around.now()
        if ending.action == "finish":
            order = self._child.order()
            if order is not None:
                self._around.finish(order["finished"])
                self._around.tell(f"has finished{_after(record.number)}")
            record.over = True
            return
        if ending.kind:
            record.add(ending.kind, now)
        budgets = self._around.budgets()
        if ending.action == "give up":
            self._give_up(f"exit code {code}, {ending.cause}", message)
        elif budgets and ending.kind and record.today(ending.kind, now) > budgets[ending.kind]:
            self._give_up(
                f"{ending.cause}, and the budget of {budgets[ending.kind]} a day ({ending.kind}) "
                "is used up; raise the stack's recovery budget",
                message,
            )
        elif ending.action == "wait" and not (budgets and self._child.pulse()[1] >= 0):
            record.waiting = True
            self._say_once(message)
        else:
            if ending.action == "renew":
                record.renew = f"its trainer ended {record.in_a_row} times in a row: {ending.cause}"
                record.waiting = True
            if ending.action == "rarely" and record.in_a_row == 1:
                more = f": {message}" if message else ""
                self._around.tell(f"waits until someone fixes it ({ending.cause}){more}")
            self._put_off(code, ending)

    def _give_up(self, why: str, message: str) -> None:
        self._record.over = True
        more = f": {message}" if message else ""
        self._around.say(f"the trainer is not restarted: {why}{more}")
        self._around.tell(f"has failed{_after(self._record.number)}: {why}{more}")

    def _put_off(self, code: int, ending: Ending) -> None:
        """Let a pause grow while no step is done, half of it left to chance.

        Where this agent recreates a lost TPU, a trainer that has just lost it starts at once: it
        loads TensorFlow, and waits for a minute.
        """
        record = self._record
        saved = ending.cause == "saved"
        further = self._child.pulse()[1] >= 0
        record.fruitless = 0 if saved or further else record.fruitless + 1
        if ending.action == "rarely" or (saved and self._going_down()):
            pause = backoff(0, _RARELY, _RARELY, self._around.chance)
        elif ending.action == "wait":
            pause = 0.0  # Creating its TPU takes longer than any start.
        else:
            pause = backoff(record.fruitless, _FIRST_PAUSE, _LONGEST_PAUSE, self._around.chance)
        record.not_before = self._around.now() + pause
        why = "its progress is saved" if saved else ending.cause
        self._around.say(
            f"the trainer ended with exit code {code} ({why}); it restarts in {pause:.0f} seconds"
        )

    def _going_down(self) -> bool:
        try:
            return self._around.going_down()
        except OSError:
            return False

    def _save(self) -> None:
        replace_file(self._folder / "record.json", dump(self._record))

    def _say_once(self, text: str) -> None:
        if self._said != text:
            self._said = text
            self._around.say(text)


def _after(starts: int) -> str:
    return f" after {starts} attempts" if starts > 1 else ""


Kind = Literal["", "preemption", "failure"]
Action = Literal["finish", "again", "wait", "rarely", "renew", "give up"]

_DONE, _WRONG_INPUT, _SAVED = 0, 2, 75
_KILLED = 128 + 9
# What another start seldom cures, so that a few tries are enough.
_STUBBORN = frozenset({"loss-diverged", "device-memory", "host-memory", "disk-full", "hung"})
MOST_IN_A_ROW = 3
# What a process on the TPU's hosts may cause: TensorFlow keeps a token until it expires, and an
# empty one for good. After this many in a row the TPU is recreated.
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
        kind: the budget that it counts against; empty if it is not a failure.
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
        memory_full: whether the kernel has killed something for lack of memory since the start.
        in_a_row: how often the trainer has ended so, this time included.
        recovered: whether this agent can recreate the TPU.
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
    """Return the cause of an end; the trainer's own word comes first."""
    if cause:
        return cause
    if code == _KILLED and memory_full:
        return "host-memory"
    return "killed" if code < 0 or code > 128 else "unknown"


def is_repeated(cause: str, before: str, *, further: bool) -> bool:
    """Return whether a failure is the one before over again.

    A disk that fills up every other week is not: the trainer got further. A bad TPU may let it do
    steps each time.
    """
    return cause == before and (cause in _OF_THE_HOSTS or not further)


@dataclass(frozen=True)
class TpuState:
    """What keeps a TPU from work: nothing, when `ending` is None.

    Attributes:
        ending: what the end of a trainer means in this state.
        said: for people, such as `t is PREEMPTED`.
    """

    ending: Ending | None
    said: str = ""


_CAUSES: dict[Phase, str] = {
    "lost": "preempted",
    "maintenance": "in maintenance",
    "stopped": "stopped",
    "coming": "not ready yet",
    "deleting": "deleted",
}
_HEALTHS = {"UNHEALTHY_MAINTENANCE": "in maintenance"}
_CURES = {
    "preempted": "`tpustack recover` recreates it, or set recovery.enabled",
    "stopped": "`gcloud compute tpus tpu-vm start NAME --zone ZONE` starts it",
    "deleted": "`pulumi up --refresh` recreates it",
    "not ready yet": "",
    "in maintenance": "it comes back automatically",
}


def tpu_state(name: str, state: str | None, health: str, *, recovered: bool) -> TpuState:
    """Return what a TPU's state means for its trainer.

    Args:
        name: of the TPU.
        state: as the API says it; None if there is no such TPU.
        health: as the API says it; empty if it is not known.
        recovered: whether this agent recreates lost TPUs.
    """
    shown = state or "gone"
    cause = "deleted" if state is None else _CAUSES.get(phase_of(state), "")
    if state == "READY" and health in _HEALTHS:
        cause, shown = _HEALTHS[health], health
    if not cause:
        return TpuState(None)
    kind: Kind = "preemption" if cause == "preempted" else ""
    waits = f"{name} is {shown} ({cause}): the trainer waits until it is READY"
    cure = "" if recovered and cause in ("preempted", "deleted") else _CURES[cause]
    return TpuState(Ending(cause, "wait", kind), waits + (f"; {cure}" if cure else ""))


_DAY = 86400.0


@dataclass
class Record:
    """The starts of one trainer since the machine's last boot, on its disk for the next agent.

    Attributes:
        number: of the last start.
        handled: of the last start whose end has been dealt with.
        over: whether nothing is started any more.
        waiting: whether the trainer waits for its TPU.
        not_before: when the next start may be, in seconds since the epoch.
        fruitless: starts in a row without a finished step.
        cause, in_a_row: how the last failure was called, and how often in a row.
        step: which step the trainer had done then; -1 for none.
        renew: why the TPU has to be recreated before the next start; empty if not.
        hung: the last start that was ended because it hung.
        on_all_hosts: what the other hosts of a slice know the last start by.
        oom_kills: what the kernel had killed for lack of memory before the last start.
        events: the failures and preemptions of the last day: when, and which.
    """

    number: int = 0
    handled: int = 0
    over: bool = False
    waiting: bool = False
    not_before: float = 0.0
    fruitless: int = 0
    cause: str = ""
    in_a_row: int = 0
    step: int = -1
    renew: str = ""
    hung: int = 0
    on_all_hosts: int = 0
    oom_kills: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)

    def today(self, kind: str, now: float) -> int:
        """Return how many events of a kind the last day has seen."""
        return sum(what == kind and now - _DAY < at <= now for at, what in self.events)

    def add(self, kind: str, now: float) -> None:
        """Add an event, and forget those of other days."""
        kept = [event for event in self.events if event[0] > now - _DAY]
        self.events = [*kept, (now, kind)]


def read_record(path: Path) -> Record:
    """Return what was saved; a new record if that is nothing or garbage."""
    try:
        return load(Record, path.read_bytes())
    except (OSError, Unreadable):
        return Record()
