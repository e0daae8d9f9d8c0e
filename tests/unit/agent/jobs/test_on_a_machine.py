"""Jobs on a machine that really runs: processes, kills, logs, artifacts."""

from __future__ import annotations

import contextlib
from functools import partial

import psutil
import pytest

from tests.patience import until
from tests.unit.agent.jobs.conftest import PROJECT, Site, submitted
from tpustack.jobs.job import job_log

pytestmark = pytest.mark.server


def written(site: Site, name: str) -> bytes:
    return b"".join(job_log(site.queue, name))


def test_a_job_runs_with_its_variables_and_leaves_log_artifacts_and_exit_code(site: Site) -> None:
    submitted(
        site,
        "first",
        'echo "$JOB_DIR $MODEL_DIR $DATA_DIR $TPU_NAME $TPU_GRPC_URL $PJRT_DEVICE $MINE"; '
        'echo made >"$ARTIFACTS_DIR/a.txt"; command -v python; exit 3',
        env={"MINE": "x y"},
        framework="jax",
    )
    site.boot()
    job = site.ends("first", "failed")
    assert (job.code, len(job.tries), job.tries[0].machine) == (3, 1, "m")
    said = written(site, "first").decode()
    where = "gs://a-bucket/jobs/first"
    assert f"{where} {where}/model gs://a-bucket/data t grpc://10.0.0.2:8470 CPU x y\n" in said
    assert "/venv/bin/python" in said
    found = site.queue.store.read("jobs/first/artifacts/a.txt")
    assert found is not None
    assert found[0] == b"made\n"


def test_a_log_of_bytes_and_of_long_lines_comes_as_it_was_written(site: Site) -> None:
    command = "head -c 1000000 /dev/zero | tr '\\0' x; printf '\\n\\000\\377\\n'"
    submitted(site, "bytes", command)
    site.boot()
    site.ends("bytes", "succeeded")
    assert written(site, "bytes") == b"x" * 1_000_000 + b"\n\0\xff\n"


def test_a_job_is_stopped_with_all_that_it_started_and_the_next_one_runs(site: Site) -> None:
    submitted(
        site, "long", "trap 'echo told; exit 9' TERM; setsid sleep 600 & echo up; sleep 600 & wait"
    )
    submitted(site, "next", "pgrep -f 'sleep 60[0]' && exit 4; exit 0", after=("long",))
    submitted(site, "late", "echo late", priority=-1)
    site.boot()
    until(lambda: b"up\n" in written(site, "long"))
    assert site.job("late").state == "queued"
    site.queue.change("long", lambda job: job.stopping(2.0, "ada"))
    site.queue.ring()
    job = site.ends("long", "stopped")
    assert job.code == 143
    assert b"told\n" in written(site, "long")
    # It comes after one that has not succeeded.
    assert "long, which is stopped" in site.ends("next", "failed").reason
    site.ends("late", "succeeded")


def test_a_job_survives_the_kill_of_the_runner_and_its_log_is_whole(site: Site) -> None:
    counting = "for i in $(seq 40); do echo line $i; sleep 0.1; done"
    submitted(site, "counts", counting)
    key = site.boot()
    until(lambda: b"line 3\n" in written(site, "counts"))
    for runners in (2, 3):
        killed(site, key)
        until(partial(has_begun, site, key, runners))
    job = site.ends("counts", "succeeded")
    assert len(job.tries) == 1
    assert written(site, "counts") == b"".join(b"line %d\n" % i for i in range(1, 41))


def has_begun(site: Site, key: str, runners: int) -> bool:
    return site.cloud.cloud.machines.serial(key)[0].count("waiting for jobs") == runners


def killed(site: Site, key: str) -> None:
    """Kill the runner of a machine, and nothing else of it."""
    for pid in site.cloud.cloud.machines.pids(key):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.cmdline()[-2:-1] and process.cmdline()[-1] == "jobs":
                process.kill()


@pytest.mark.parametrize("grace", [0.0, 5.0])
def test_a_job_whose_machine_is_restarted_runs_once_more(site: Site, grace: float) -> None:
    submitted(site, "again", 'echo "try $JOB_TRY"; [[ $JOB_TRY == 2 ]] || exec sleep 600')
    key = site.boot()
    until(lambda: b"try 1\n" in written(site, "again"))
    site.cloud.cloud.machines.halt(key, grace=grace)
    site.boot()
    job = site.ends("again", "succeeded")
    assert [one.why for one in job.tries] == ["preempted", "exited"]
    lines = written(site, "again").splitlines()
    assert [line for line in lines if line.startswith(b"try")] == [b"try 1", b"try 2"]


def test_a_job_whose_tpu_goes_waits_for_another_one(site: Site) -> None:
    submitted(site, "moves", 'echo "try $JOB_TRY"; [[ $JOB_TRY == 2 ]] || sleep 600')
    key = site.boot()
    until(lambda: b"try 1\n" in written(site, "moves"))
    site.tpu("PREEMPTED")
    site.says(key, "moves waits: the TPU t is PREEMPTED")
    site.tpu("READY")
    job = site.ends("moves", "succeeded")
    assert [one.why for one in job.tries] == ["preempted", "exited"]


@pytest.mark.parametrize(
    ("command", "more", "state", "code", "said"),
    [
        ("no-such-program --x", {}, "failed", 127, "the command doesn't exist"),
        ("exit 2", {"failures": 3}, "failed", 2, "exit code 2"),
        ("sleep 60", {"timeout": 0.3}, "timed-out", 124, "longer than 0.3 s"),
        (
            "true",
            {"requirements": "--no-index\nno-such-package==1.0\n"},
            "failed",
            1,
            "can't be installed",
        ),
        ("true", {"archive": "0" * 64, "kind": "folder"}, "failed", 1, "no longer in the bucket"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_can_not_run_ends_once_with_its_reason(
    site: Site, command: str, more: dict[str, object], state: str, code: int, said: str
) -> None:
    submitted(site, "wrong", command, **more)
    site.boot()
    job = site.ends("wrong", state)
    assert (job.code, len(job.tries)) == (code, 1)
    assert said in job.reason


def test_an_entry_in_the_log_says_how_each_job_ended(site: Site) -> None:
    key = site.boot(log=f"projects/{PROJECT}/logs/x-messages")
    site.says(key, "waiting for jobs")
    submitted(site, "good", "exit 0")
    submitted(site, "bad", "exit 7", after=("good",))
    site.ends("bad", "failed")
    until(lambda: len(site.entries()) == 2)
    told = [entry["jsonPayload"] for entry in site.entries()]
    assert [entry["event"] for entry in told] == ["job", "job"]
    assert [entry["text"].split(" after ")[0] for entry in told] == [
        "good has succeeded",
        "bad is failed (exit code 7)",
    ]
