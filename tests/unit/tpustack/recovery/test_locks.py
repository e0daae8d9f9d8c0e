from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from tpustack.recovery.locks import LONGEST_RUN, held, locks_in, orphaned

# As the engine's backend for buckets and folders says it.
REFUSAL = """error: the stack is currently locked by 1 lock(s). Either wait for the other
process(es) to end or delete the lock file with `pulumi cancel`.
  gs://bucket/.pulumi/locks/organization/p/dev/5f.json: created by ada@laptop (pid 42) at \
2026-11-21T10:00:00Z"""
SINCE = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)


def test_the_engines_refusal_says_whose_the_lock_is() -> None:
    (lock,) = locks_in(REFUSAL)
    assert (lock.user, lock.host, lock.pid, lock.since) == ("ada", "laptop", 42, SINCE)
    message = held("dev", [lock])
    for part in ("ada@laptop", "process 42", "10:00:00 UTC", "tpustack recover --stack dev"):
        assert part in message


def test_a_lock_of_somebody_who_is_not_named_is_not_orphaned() -> None:
    assert not orphaned(locks_in("error: [409] Conflict: Another update is in progress."))


@pytest.mark.parametrize(
    ("host", "started", "age", "orphaned"),
    [
        # Its process is there, and was before the lock.
        ("laptop", SINCE - MINUTE, MINUTE, False),
        # The engine says the lock's time in whole seconds: it was not there before its holder.
        ("laptop", SINCE + timedelta(seconds=0.9), MINUTE, False),
        ("laptop", None, MINUTE, True),
        # Another process has its number now.
        ("laptop", SINCE + MINUTE, 2 * MINUTE, True),
        # Nothing is known of the processes of another machine, but no run takes that long.
        ("runner", None, MINUTE, False),
        ("runner", None, LONGEST_RUN + MINUTE, True),
    ],
)
def test_a_lock_is_orphaned_when_its_holder_is_dead(
    host: str, started: datetime | None, age: timedelta, orphaned: bool
) -> None:
    (lock,) = locks_in(REFUSAL)
    assert lock.is_orphaned(SINCE + age, host, lambda pid: started) is orphaned


def test_a_killed_holder_is_dead_although_nobody_has_asked_how_it_ended() -> None:
    """As in a container, whose first process asks late or never."""
    (lock,) = locks_in(REFUSAL)
    holder = subprocess.Popen(["sleep", "600"])
    since = datetime.now(timezone.utc) + MINUTE
    locks = [replace(lock, host=socket.gethostname(), pid=holder.pid, since=since)]
    assert not orphaned(locks)
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert orphaned(locks)
    holder.wait()
