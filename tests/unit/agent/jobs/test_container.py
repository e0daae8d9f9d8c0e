"""Jobs that name a container image, with a stand-in for Docker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until
from tests.unit.agent.jobs import fake_docker
from tests.unit.agent.jobs.memory import TPU, Bucket, Clock, MemoryStore
from tpu_agent.jobs.attempt import MARK, Attempt, Supervisor
from tpu_agent.jobs.container import CAUSES
from tpu_agent.jobs.environment import content_of
from tpu_agent.jobs.identity import Identity
from tpu_agent.jobs.queue import Job, Outcome, Spec

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux")

TOKEN = "ya29.secret"
IMAGE = "python:3.11"
OWN = "us-docker.pkg.dev/p/r/train:1"
NAME = "tpu-stack-one-1"
# A process of its own, as Attempt.start has it: it can be killed.
SUPERVISOR = f"""
import sys
from pathlib import Path
from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore
from tpu_agent.jobs.attempt import supervise
from tpu_agent.jobs.identity import Identity
store = MemoryStore(Bucket(Clock()))
supervise(Path(sys.argv[2]), lambda _: store, Identity(token=lambda: {TOKEN!r}))
"""


class Machine:
    """A machine with Docker, and one attempt."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.docker, self.bucket = folder / "docker", Bucket(Clock())
        self.attempt = Attempt(folder / "one-1")
        self.docker.mkdir()

    def prepare(
        self, command: str, image: str = IMAGE, *, is_here: bool = True, **more: Any
    ) -> Attempt:
        job = Job("one", "id", Spec(command, image=image, **more), 1.0)
        content = content_of(job.started("m", "m", "t", 1.0), "b", TPU)
        self.attempt.prepare({**content, "is_here": is_here})
        # As `Attempt.start` does for the supervisor.
        self._patch.setenv(MARK, self.attempt.content()["mark"])
        return self.attempt

    def supervisor(self, who: Identity | None = None) -> Supervisor:
        who = who or Identity(token=lambda: TOKEN)
        return Supervisor(self.attempt, lambda _: MemoryStore(self.bucket), who)

    def runs(self, command: str, image: str = IMAGE, **more: Any) -> Outcome:
        self.prepare(command, image, **more)
        return self.supervisor().run()

    def asked(self, verb: str) -> list[list[str]]:
        lines = (self.docker / "asked").read_text().splitlines()
        return [one for one in map(json.loads, lines) if one[0] == verb]

    def left(self) -> list[str]:
        """What is there of a container, or of a login."""
        containers = [path.name for path in self.docker.glob("*.pid")]
        kept = [str(path) for path in self.attempt.folder.rglob("config.json")]
        return containers + kept


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made, programs = Machine(tmp_path, monkeypatch), tmp_path / "bin"
    programs.mkdir()
    program = programs / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {fake_docker.__file__} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_DOCKER", str(made.docker))
    monkeypatch.setattr("tpu_agent.jobs.container._PAUSES", (0.0, 0.0))
    return made


def test_a_job_runs_in_its_image_with_folder_variables_artifacts_and_exit_code(
    machine: Machine,
) -> None:
    command = 'pwd; echo "$JOB_TRY $MINE $TPU_STACK_TRY." >"$ARTIFACTS_DIR/a"; exit 3'
    done = machine.runs(command, env={"MINE": "x\ny", "PATH": "/bin"})
    assert (done.why, done.code) == ("exited", 3)
    assert machine.bucket.things["jobs/one/artifacts/a"].data == b"1 x\ny .\n"
    (run,) = machine.asked("run")
    folder = machine.attempt.folder
    assert {"--privileged", "--net=host", "--rm", "--init", f"--workdir={folder}/work"} < {*run}
    assert not any("x\ny" in one for one in run)
    assert run[-3:] == [fake_docker.DIGEST, "-c", command]
    machine.attempt.finish(done)
    assert machine.attempt.outcome() == Outcome("exited", 3, "", fake_docker.DIGEST)
    assert not (folder / "venv" / "bin").exists()
    assert machine.left() == []


def test_the_record_tells_which_image_ran_by_its_digest() -> None:
    job = Job("one", "id", Spec("true", image=IMAGE), 1.0).started("m", "m", "t", 1.0)
    ended = job.after_try(Outcome("exited", 0, image=fake_docker.DIGEST), 2.0)
    assert ended.tries[0].image == fake_docker.DIGEST


def test_a_container_on_a_machine_without_chips_is_not_privileged(machine: Machine) -> None:
    machine.runs("true", is_here=False)
    (run,) = machine.asked("run")
    assert "--privileged" not in run


def test_an_image_of_the_project_is_pulled_with_a_token_that_nothing_keeps(
    machine: Machine,
) -> None:
    assert machine.runs("true", OWN, env={"TPU_PROJECT": "other"}).code == 0
    assert machine.asked("login")[0][-1] == "us-docker.pkg.dev"
    assert TOKEN not in (machine.docker / "asked").read_text()
    assert machine.left() == []


@pytest.mark.parametrize(
    "image", ["us-docker.pkg.dev/other/r/a:1", "us-docker.pkg.dev.evil.com/p/r/a:1", IMAGE]
)
def test_no_other_registry_gets_the_token(machine: Machine, image: str) -> None:
    outcome = machine.runs("true", image)
    assert machine.asked("login") == []
    if image == IMAGE:
        assert outcome.code == 0
    else:
        assert outcome.why == "setup"
        assert "roles/artifactregistry.reader for the machine's service" in outcome.said


def test_without_root_nothing_is_made(machine: Machine) -> None:
    machine.prepare("true")
    metadata: Any = object()
    outcome = machine.supervisor(Identity(metadata)).run()
    assert outcome.why == "setup"
    assert outcome.said.startswith("--image needs jobs.asRoot: true, which is not set")
    assert not (machine.attempt.folder / "work").exists()
    assert not (machine.docker / "asked").exists()


def test_a_machine_without_docker_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    outcome = machine.runs("true")
    assert outcome.why == "setup"
    assert outcome.said.startswith("this machine has no Docker, which python:3.11 needs (--image)")
    assert machine.attempt.kill()


def test_a_daemon_that_is_down_and_a_missing_image_are_told(machine: Machine) -> None:
    assert machine.runs("true", "no-such:1").said.startswith("--image: no-such:1 can't be pulled")
    (machine.docker / "down").touch()
    outcome = machine.supervisor().run()
    assert outcome.said == (
        "Docker doesn't work on this machine: Cannot connect to the Docker daemon"
    )
    # Nothing was started, so nothing keeps the machine.
    assert machine.attempt.kill()


def test_a_container_that_docker_ends_as_the_machine_goes_down_is_no_failure(
    machine: Machine, tmp_path: Path
) -> None:
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.write_text("#!/bin/sh\necho stopping\nexit 1\n")
    systemctl.chmod(0o755)
    assert machine.runs("exit 1").why == "preempted"


@pytest.mark.parametrize("image", [IMAGE, OWN])
def test_a_registry_that_fails_once_is_asked_again(machine: Machine, image: str) -> None:
    (machine.docker / "busy").touch()
    assert machine.runs("true", image).code == 0
    assert len(machine.asked("pull")) == 2


def test_a_registry_that_takes_no_login_at_first_is_asked_again(machine: Machine) -> None:
    (machine.docker / "refuses").touch()
    assert machine.runs("true", OWN).code == 0
    assert len(machine.asked("login")) == 2


def test_a_login_that_hangs_is_tried_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, hangs = subprocess.run, ["once"]

    def run(command: Any, **more: Any) -> Any:
        if command[1] == "login" and hangs:
            raise subprocess.TimeoutExpired(hangs.pop(), more["timeout"])
        return real(command, **more)

    monkeypatch.setattr("tpu_agent.jobs.container.subprocess.run", run)
    assert machine.runs("true", OWN).code == 0
    assert (len(machine.asked("login")), hangs) == (1, [])


def test_a_registry_that_never_takes_a_login_is_named(machine: Machine) -> None:
    (machine.docker / "refuses").write_text("always")
    said = machine.runs("true", OWN).said
    assert said == "--image: Docker can't log in to us-docker.pkg.dev: denied: try later"
    assert machine.left() == []


@pytest.mark.parametrize("code", CAUSES)
def test_what_dockers_own_exit_codes_mean_is_told(machine: Machine, code: int) -> None:
    outcome = machine.runs(f"exit {code}")
    assert outcome == Outcome("exited", code, CAUSES[code])


def test_sigterm_reaches_the_program_which_may_save(machine: Machine) -> None:
    saves = "trap 'echo saved >saved; exit 75' TERM; echo up >up; while :; do sleep 0.1; done"
    machine.prepare(saves)
    work, outcomes = machine.attempt.folder / "work", list[Outcome]()
    thread = threading.Thread(target=lambda: outcomes.append(machine.supervisor().run()))
    thread.start()
    until((work / "up").exists)
    machine.attempt.end("stopped")
    thread.join()
    assert outcomes[0].why == "stopped"
    assert (work / "saved").exists()
    assert machine.left() == []


def test_a_program_that_does_not_listen_is_killed_after_the_grace(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_agent.jobs.attempt._GRACE", 0.5)
    machine.prepare("trap '' TERM; echo up >up; sleep 600")
    thread = threading.Thread(target=machine.supervisor().run)
    thread.start()
    until((machine.attempt.folder / "work" / "up").exists)
    machine.attempt.end("stopped")
    thread.join()
    assert machine.left() == []


def test_a_container_that_an_earlier_start_left_is_removed_before(machine: Machine) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as left:
        (machine.docker / f"{NAME}.pid").write_text(str(left.pid))
        assert machine.runs("true").code == 0
        assert left.wait() == -signal.SIGKILL


def test_a_container_whose_client_was_killed_ends_with_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KILL", "client during run")
    assert machine.runs("sleep 600").code == 128 + signal.SIGKILL
    assert machine.left() == []


@pytest.mark.parametrize("why", ["down", "removing"])
def test_a_container_that_can_not_be_removed_keeps_the_machine(machine: Machine, why: str) -> None:
    machine.runs("true")
    (machine.docker / why).touch()
    assert not machine.attempt.kill()


@pytest.mark.parametrize(
    "when",
    [f"{when} {verb}" for verb in ("login", "pull", "image", "run") for when in ("before", "after")]
    + ["before rm", "after rm", "during run"],
)
def test_a_supervisor_that_is_killed_at_any_point_leaves_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    machine.prepare("sleep 600" if when == "during run" else "true", OWN)
    monkeypatch.setenv("FAKE_KILL", f"caller {when}")
    folder = str(machine.attempt.folder)
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, "try", folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.wait() == -signal.SIGKILL
    monkeypatch.delenv("FAKE_KILL")
    outcome = machine.attempt.outcome()
    assert outcome is not None
    assert outcome.why == "preempted"
    assert machine.attempt.kill()
    assert machine.left() == []
