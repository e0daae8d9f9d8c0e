"""A stack that runs jobs, on the real engine and a machine that really runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.patience import PATIENCE, until
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand
from tpustack.project import build_wheel

from .conftest import output

MAIN = """
import os, sys, tpu_training
print("argument", sys.argv[1], "url", os.environ["TPU_GRPC_URL"], flush=True)
print("from", os.path.relpath(sys.prefix, os.environ["ARTIFACTS_DIR"]), flush=True)
open(os.path.join(os.environ["ARTIFACTS_DIR"], "made.txt"), "w").write("made")
sys.exit(3)
"""
# A loop of one's own, which is killed once.
LOOP = """
import os, signal, tpu_core
with tpu_core.run(os.environ["MODEL_DIR"]) as run:
    step = int(run.read("step") or 0)
    print("from", step, flush=True)
    run.step(step)
    while step < 100:
        step += 1
        if run.step(step) or step % 30 == 0:
            run.save("step", str(step).encode())
        if step == 73 and os.environ["JOB_TRY"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""
REPOSITORY = Path(__file__).parents[2]
TPUSTACK = (sys.executable, "-m", "tpustack")


# What Jupyter would run, and the last figure as a picture.
NOTEBOOK = """
import json, pathlib, sys
names = {}
for cell in json.loads(pathlib.Path(sys.argv[1]).read_text())["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
names["figure"].savefig(sys.argv[2])
print("losses", *(row["loss"] for row in names["result"].history))
"""
EXAMPLES = Path(__file__).parents[2] / "examples"
# Hosts meet as JAX's do before they compute; then one of them may fail while the other waits.
TOGETHER = """
import os, pathlib, sys, time
meeting, failing = pathlib.Path(sys.argv[1]), sys.argv[2:]
number, hosts = os.environ["TPU_WORKER_ID"], os.environ["TPU_WORKER_HOSTNAMES"].split(",")
(meeting / number).touch()
while len(list(meeting.iterdir())) < len(hosts):
    time.sleep(0.1)
print("host", number, "of", len(hosts), "on", os.environ["PJRT_DEVICE"], flush=True)
pathlib.Path(os.environ["ARTIFACTS_DIR"], "made.txt").write_text(number)
if failing:
    sys.exit(3) if number == failing[0] else time.sleep(600)
"""
SLICE = {"acceleratorType": "v4-16", "runtimeVersion": "tpu-vm-tf-2.19.0-pjrt"}


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


def test_a_job_goes_from_a_folder_to_its_exit_code_and_the_state_knows_no_difference(
    deploy: Callable[..., Stack],
    cloud: LocalCloudCommand,
    project: Path,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    before = cloud.status()["resources"]
    engine = deploy(jobs={"enabled": True}, limits={"idleMinutes": 60})
    # What finds the engine.
    (project / "tools").symlink_to(REPOSITORY / "tools")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "main.py").write_text(MAIN)

    def job(
        verb: str, *arguments: str, at: tuple[str, ...] = ("--stack", "local")
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*TPUSTACK, "job", verb, *arguments, *at],
            cwd=project,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    submitted = job(
        *("submit", "--command", "python main.py 42", "--dir", str(folder), "--name", "first"),
        *("--framework", "tensorflow", "--create", "--idle-stop", "30"),
    )
    assert submitted.returncode == 0, submitted.stderr
    assert "pulumi up for the stack local: it has no bucket yet" in submitted.stderr
    outputs = engine.outputs()
    followed = job("logs", "first", "--follow")
    assert followed.returncode == 3, followed.stderr
    assert f"argument 42 url {outputs['tpu_endpoint']}\nfrom ../venv\n" in followed.stdout
    look = [*TPUSTACK, "top", "--stack", "local", "--json"]
    seen = json.loads(output(look, {**os.environ, **environment}, cwd=project))
    (host,) = seen["hosts"]
    assert (host["state"], host["duty_cycle"], seen["trainings"]) == ("READY", None, [])
    assert float(host["dollars"]) > 0
    bucket = ("--bucket", outputs["bucket_url"])
    (made,) = json.loads(job("artifacts", "first", "--json", at=bucket).stdout)
    assert (made["name"], made["bytes"]) == ("artifacts/made.txt", 4)

    second = job("submit", "--command", "sleep 600", "--name", "long", "--create")
    assert (second.returncode, second.stderr) == (0, "")
    assert job("stop", "long").returncode == 0
    assert job("wait", "long", "--timeout", "1m").returncode == 143

    assert engine.up(ignore).changed == 0
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before


def test_an_example_a_loop_of_ones_own_and_the_notebook_train_in_the_local_cloud(
    deploy: Callable[..., Stack], cloud: LocalCloudCommand, project: Path, tmp_path: Path
) -> None:
    real = {"wheel": str(build_wheel(tmp_path / "wheel")), "tensorflowVersion": "2.19.1"}
    engine = deploy(jobs={"enabled": True}, training=real)
    bucket = engine.up(ignore).outputs["bucket_url"]
    # What `tpustack local env --backend` looks for in a checkout: the engine's tools, the state.
    (project / "tools").symlink_to(EXAMPLES.parent / "tools")
    (project / ".state").symlink_to(tmp_path / "state")
    picture = tmp_path / "curve.png"

    def job(verb: str, *words: str | Path) -> str:
        command = [*TPUSTACK, "job", verb, *words, "--bucket", bucket]
        return output(command, {**os.environ, **cloud.environment()})

    line = ("--command", "python main.py", "--dir", EXAMPLES / "tensorflow", "--name", "example")
    job("submit", *line, "--framework", "tensorflow")
    log = job("logs", "example", "--follow")
    # The local cloud's TPU is eight logical devices of another process.
    assert re.search("^devices: 8 x ", log, re.M)
    assert float(re.findall(r"^accuracy: ([\d.]+)$", log, re.M)[-1]) > 0.9

    (tmp_path / "loop").mkdir()
    (tmp_path / "loop/loop.py").write_text(LOOP)
    line = ("--command", "python loop.py", "--dir", tmp_path / "loop", "--name", "loop")
    job("submit", *line, "--failures", "1")
    log = job("logs", "loop", "--follow")
    assert re.findall(r"^from \d+$", log, re.M) == ["from 0", "from 60"]
    command = [*TPUSTACK, "goodput", f"{bucket}/jobs/loop/model", "--json"]
    account = json.loads(output(command, {**os.environ, **cloud.environment()}))
    assert (account["starts"], account["steps"]) == (2, 100)
    # After its last checkpoint the first start wrote nothing.
    assert account["seconds"]["away"] > 0

    notebook = EXAMPLES / "notebook" / "curve.ipynb"
    run = (sys.executable, "-c", NOTEBOOK, notebook, picture)
    told = {"LOCALCLOUD_HOME": str(cloud.home), "STACK": "local", "MPLBACKEND": "Agg"}
    words = output(run, {**os.environ, **told}, cwd=project)
    assert "replicas=8" in words
    losses = [float(loss) for loss in words.splitlines()[-1].removeprefix("losses ").split()]
    assert len(losses) > 10
    assert losses[-1] < losses[0] / 4
    assert picture.stat().st_size > 10_000
    engine.destroy(ignore)


def test_a_job_of_jax_runs_on_every_host_of_a_slice_and_fails_with_any_of_them(
    deploy: Callable[..., Stack], cloud: LocalCloudCommand, trainer: Path, tmp_path: Path
) -> None:
    here = {"runOn": "tpu", "wheel": str(trainer), "tensorflowVersion": "2.19.1"}
    engine = deploy(zone="us-central2-b", tpu=SLICE, training=here, jobs={"enabled": True})
    bucket = engine.up(ignore).outputs["bucket_url"]
    work = tmp_path / "work"
    work.mkdir()
    (work / "main.py").write_text(TOGETHER)

    def job(verb: str, *words: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            [*TPUSTACK, "job", verb, *words, "--bucket", bucket],
            env={**os.environ, **cloud.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def submit(name: str, *failing: str) -> None:
        (tmp_path / name).mkdir()
        line = shlex.join(["python", "main.py", str(tmp_path / name), *failing])
        job("submit", "--name", name, "--command", line, "--dir", work, "--framework", "jax")

    submit("good")
    assert "host 0 of 2 on TPU\n" in job("logs", "good", "--follow")
    # Worker 0 decides when it has ended; the other host may still bring its own.
    made = {"artifacts/made.txt": "0", "artifacts/host-1/made.txt": "1"}
    log = "hosts/0001/1.log"

    def kept() -> set[str]:
        return {one["name"] for one in json.loads(job("artifacts", "good", "--json"))}

    until(lambda: {*made, log} <= kept(), "both hosts have brought theirs")
    job("artifacts", "good", "--output", tmp_path / "kept")
    assert {name: (tmp_path / "kept" / name).read_text() for name in made} == made
    assert "host 1 of 2 on TPU\n" in (tmp_path / "kept" / log).read_text()

    submit("bad", "1")
    assert "(host 1 of the TPU: exit code 3)" in job("wait", "bad", code=3)
    engine.destroy(ignore)
