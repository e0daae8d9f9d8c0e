"""A job that fills the disk of its machine: said as such, and not paid for eleven times."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.jobs.memory import Bucket, Clock, Machine, MemoryStore
from tpu_agent.jobs.queue import ENDED, QUEUED, Job, Queue, Spec

ROOT = Path(__file__).parents[4]
# In a name space of its own, whose disk has 32 MiB.
FILLED = """
import sys
from pathlib import Path
from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.environment import Environment
from tpu_agent.jobs.identity import Identity
from tpu_agent.jobs.queue import Spec
from tpu_agent.jobs.attempt import now, supervise
from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore

folder = Path(sys.argv[1]) / "one-1"
attempt = Attempt(folder)
spec = vars(Spec("head -c 1G /dev/zero"))
attempt.prepare({"job": "one", "number": 1, "bucket": "b", "spec": spec, "variables": {}})
attempt.beat(now())
Environment._build = lambda self, *_, **__: None
sys.stdout.flush()
kept = sys.stderr = open(sys.argv[2], "w")
supervise(folder, lambda _: MemoryStore(Bucket(Clock())), Identity())
attempt.beat(now())
attempt.end("stopped")
print(attempt.ended(), attempt.last_beat() is not None, attempt.is_to_end().why, file=kept)
"""


def in_32_mib(program: str, folder: Path, *arguments: str) -> None:
    mount = f'mount -t tmpfs -o size=32m none "{folder}" && exec "$0" "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount]
    command += [sys.executable, "-c", program, str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"needs name spaces: {done.stderr.strip()}")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs Linux")
def test_a_log_that_fills_the_disk_ends_the_try_as_a_failure_that_says_so(tmp_path: Path) -> None:
    disk, told = tmp_path / "disk", tmp_path / "told"
    disk.mkdir()
    in_32_mib(FILLED, disk, str(told))
    said = "the VM's disk is full"
    assert (
        told.read_text() == f"Outcome(why='exited', code=1, said={said!r}, image='') True stopped\n"
    )


def test_no_job_begins_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = "the VM's disk is full"
    # Where not even a folder can be made, nothing is kept that could make room.
    (tmp_path / "environments").touch()
    bucket = Bucket(Clock())
    machine = Machine("m", bucket, tmp_path, lambda _: (0.5, 0), lambda: None)
    Queue(MemoryStore(bucket), print).add(Job("one", "id", Spec("true"), 9.0))
    with monkeypatch.context() as patched:
        patched.setattr("tpu_agent.jobs.runner.why_full", lambda _: full)
        for _ in range(20):
            bucket.clock.seconds += 5.0
            machine.step()
    assert bucket.states["one"] == [QUEUED]
    assert machine.said == [f"one waits: {full}"]
    while bucket.states["one"][-1] not in ENDED:
        bucket.clock.seconds += 5.0
        assert bucket.clock.seconds < 200.0
        machine.step()
