"""What may be submitted, and what is refused with nothing queued."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from localcloud.testing import Client
from tests.unit.tpustack.conftest import Run
from tests.unit.tpustack.jobs.conftest import stack
from tpu_agent.jobs.queue import Job, Queue
from tpu_core import paths
from tpustack.cloud.google import Google
from tpustack.errors import UsageError
from tpustack.jobs.source import pack


def only(queue: Queue) -> Job:
    (name,) = queue.summaries()
    job = queue.read(name)
    assert job is not None
    return job


def names(queue: Queue, job: Job) -> list[str]:
    found = queue.store.read(paths.archive(job.spec.archive))
    assert found is not None
    with tarfile.open(fileobj=io.BytesIO(found[0])) as tar:
        return tar.getnames()


def everything(queue: Queue) -> list[str]:
    return [item.path for item in queue.store.items("")]


def test_submit_queues_a_job_with_all_of_its_options(
    job: Run, queue: Queue, folder: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("six==1.17.0 --hash=sha256:00\n")
    done = job(
        *(
            "submit",
            "--command",
            "X=1 python main.py --x 1",
            "--dir",
            str(folder),
            "--env",
            "A=b=c",
        ),
        *("--requirements", str(lock), "--framework", "jax", "--name", "one"),
        *("--priority", "3", "--timeout", "2h", "--failures", "1", "--preemptions", "0"),
    )
    assert (done.code, done.out) == (0, "one\n")
    assert "no machine runs the jobs of gs://a-bucket now (none has ever done so)" in done.err
    spec = only(queue).spec
    assert (spec.command, spec.env, spec.framework) == (
        "X=1 python main.py --x 1",
        {"A": "b=c"},
        "jax",
    )
    assert (spec.priority, spec.timeout, spec.failures, spec.preemptions) == (3, 7200.0, 1, 0)
    assert spec.requirements == lock.read_text()
    assert names(queue, only(queue)) == ["main.py"]


def test_ignored_files_are_not_packed(job: Run, queue: Queue, folder: Path) -> None:
    for name in ("data/big.bin", "sub/a.log", "sub/keep.log", ".git/config", "notes/x.md", "y.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".gitignore").write_text("data/\n*.log\n")
    (folder / "sub" / ".gitignore").write_text("!keep.log\n")
    (folder / ".tpustackignore").write_text("/notes\n.gitignore\n.tpustackignore\n")
    assert job("submit", "-c", "python main.py", "--dir", str(folder)).code == 0
    assert names(queue, only(queue)) == ["main.py", "sub/keep.log", "y.md"]


def test_identical_files_are_uploaded_once_despite_new_times(
    job: Run, queue: Queue, folder: Path
) -> None:
    job("submit", "-c", "python main.py", "--dir", str(folder), "--name", "a")
    before = queue.store.look(paths.archive(only(queue).spec.archive))
    os.utime(folder / "main.py", (1, 1))
    assert job("submit", "-c", "python main.py", "--dir", str(folder), "--name", "b").code == 0
    assert before is not None
    after = queue.store.look(before.path)
    assert after is not None
    assert after.generation == before.generation


def test_the_same_job_is_refused_the_second_time_and_may_be_resubmitted(
    job: Run, queue: Queue, folder: Path
) -> None:
    arguments = ("-c", "python main.py", "--dir", str(folder))
    name = job("submit", *arguments).out.strip()
    again = job("submit", *arguments)
    assert again.code == 2
    assert f"the same job is there already: {name} (" in again.err
    assert list(queue.summaries()) == [name]
    assert job("resubmit", name).out == f"{name}-r2\n"
    assert job("resubmit", f"{name}-r2").out == f"{name}-r3\n"


def test_a_name_in_use_is_refused(job: Run, queue: Queue) -> None:
    assert job("submit", "-c", "echo 1", "--name", "one").code == 0
    refused = job("submit", "-c", "echo 2", "--name", "one")
    assert refused.code == 2
    assert "--name: one is in use" in refused.err
    assert only(queue).spec.command == "echo 1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", ""], "--command: it is empty"),
        (["-c", "python 'x"], "--command: bash can't read"),
        (["-c", "python gone.py", "--dir", "."], "it runs gone.py, but"),
        (["-c", "./gone.sh", "--dir", "."], "it runs gone.sh, but"),
        (["-c", "python main.py"], "it runs main.py, but the job brings no files"),
        (["-c", "true", "--dir", "nowhere"], "--dir: nowhere does not exist"),
        (["-c", "true", "--wheel", "main.py"], "--wheel: main.py is not a wheel"),
        (["-c", "true", "--dir", ".", "--wheel", "x.whl"], "exclude each other"),
        (["-c", "true", "--name", "Big Name"], "--name: 'Big Name' is not a job name"),
        (["-c", "true", "--env", "1X=2"], "--env: '1X=2' is not a variable"),
        (["-c", "true", "--env", "T=ghp_" + "a" * 36], "it holds a GitHub token"),
        (["-c", "X=ghp_" + "a" * 36 + " true"], "--command: it must not go into the bucket"),
        (["-c", "true", "--idle-stop", "5"], "--create and --idle-stop need --stack NAME"),
        (["-c", "true", "--create"], "--create and --idle-stop need --stack NAME"),
        (["-c", "true", "--idle-stop", "0"], "0 is not in the range"),
        (["-c", "true", "--requirements", "gone.txt"], "--requirements: gone.txt can't be read"),
        (["-c", "true", "--after", "gone"], "--after: there is no job gone"),
        (["-c", "true", "--timeout", "soon"], "'soon' is not a duration"),
        (["-c", "true", "--framework", "caffe"], "'caffe' is not one of"),
        (["-c", "true", "--image", "--rm"], "--image: '--rm' is not a container image"),
        (["-c", "true", "--image", "https://a/b"], "Write it like us-docker.pkg.dev/PROJECT/"),
        (
            ["-c", "true", "--image", "a:1", "--requirements", "main.py"],
            "--requirements: main.py can't be installed into the image a:1",
        ),
        (
            ["-c", "true", "--image", "a:1", "--env", "DOCKER_HOST=tcp://elsewhere"],
            "--env: DOCKER_HOST would change which Docker runs the image a:1",
        ),
        (["-c", "true", "--stack", "x"], "name two queues. Use one of them"),
    ],
)
def test_wrong_input_is_one_message_and_nothing_is_queued(
    job: Run,
    queue: Queue,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    done = job("submit", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err
    assert everything(queue) == []


def test_an_image_needs_jobs_that_are_root_and_is_refused_before_anything_is_queued(
    run: Run, queue: Queue, project: Path
) -> None:
    stack(project, {"enabled": True})
    submit = ("job", "submit", "--stack", "dev", "-c", "true", "--image", "python:3.11")
    refused = run(*submit)
    assert refused.code == 2
    assert "--image: python:3.11 needs jobs.asRoot: true, which is not set for the" in refused.err
    assert "that is root on the machine" in refused.err
    assert everything(queue) == []
    stack(project, {"enabled": True, "asRoot": True})
    assert run(*submit).code == 0
    assert only(queue).spec.image == "python:3.11"
    name = only(queue).name
    assert "  image      python:3.11\n" in run("job", "show", name, "--stack", "dev").out
    stack(project, {"enabled": True})
    assert "needs jobs.asRoot" in run("job", "resubmit", name, "--stack", "dev").err


def test_all_problems_of_a_submission_are_reported_at_once(job: Run, folder: Path) -> None:
    done = job("submit", "-c", "python x.py", "--dir", str(folder), "--name", "-", "--env", "x")
    assert [line[:12] for line in done.err.splitlines()] == [
        "error: --nam",
        "--env: 'x' i",
        "--command: i",
    ]


def test_secrets_and_links_out_of_the_folder_are_refused(
    job: Run, queue: Queue, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("x")
    (folder / "absolute").symlink_to(tmp_path / "outside")
    (folder / "above").symlink_to("../outside")
    (folder / "inside").symlink_to("main.py")
    (folder / "id_rsa").write_text("x")
    (folder / "settings.py").write_text(f"KEY = 'AIza{'a' * 35}'\n")
    (folder / "key.json").write_text('{"private_key_id": "' + "0" * 40 + '"}')
    (folder / "text.txt").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    os.mkfifo(folder / "pipe")
    done = job("submit", "-c", "python main.py", "--dir", str(folder))
    assert done.code == 2
    wrong = [line.removeprefix("error: ").split()[1] for line in done.err.splitlines()]
    secret = ["id_rsa", "key.json", "settings.py", "text.txt"]
    assert sorted(wrong) == sorted(["above", "absolute", "pipe", *secret])
    assert everything(queue) == []


def test_a_folder_that_is_too_large_is_refused_before_it_is_read(folder: Path) -> None:
    (folder / "data.bin").write_bytes(b"0" * 2_000_000)
    with pytest.raises(UsageError, match=r"has 2 files of 2 MiB together, and at most"):
        pack(folder, most_bytes=1 << 20)


def test_a_wheel_is_uploaded(job: Run, queue: Queue, tmp_path: Path) -> None:
    wheel = tmp_path / "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mine.py", "")
    assert job("submit", "-c", "python -m mine", "--wheel", str(wheel)).code == 0
    assert (only(queue).spec.kind, only(queue).spec.source) == ("wheel", wheel.name)


def test_a_stack_that_is_down_or_runs_no_jobs_is_named(
    run: Run, queue: Queue, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    refused = run("job", "submit", "-c", "true", "--stack", "local")
    assert refused.code == 2
    assert "jobs.enabled: (not set) for the stack local" in refused.err
    down = run("job", "list", "--stack", "local")
    assert down.code == 2
    assert "the stack is down" in down.err


def stack_with_jobs(project: Path, queue: Queue) -> Path:
    """Let the stack `local` queue its jobs there; return its file."""
    file = project / "stacks" / "Pulumi.local.yaml"
    bucket = f"tpu-stack:bucket: {{name: {queue.store.bucket}}}"
    settings = f"{bucket}\n  tpu-stack:jobs: {{enabled: true}}"
    text = file.read_text()
    file.write_text(
        text.replace("tpu-stack:bucket:\n    forceDestroy: true\n    softDeleteDays: 0", settings)
    )
    return file


def test_submit_warns_if_the_framework_will_find_no_tpu(
    run: Run, queue: Queue, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stack_with_jobs(project, queue)
    monkeypatch.chdir(project)
    done = run("job", "submit", "-c", "true", "--stack", "local", "--framework", "jax")
    assert done.code == 0, done.err
    assert "warning: training.runOn: vm for the stack local: jax reaches only" in done.err
    plain = run("job", "submit", "-c", "true", "--stack", "local", "--framework", "tensorflow")
    assert "training.runOn" not in plain.err

    file.write_text(file.read_text().replace("runOn: vm", "runOn: tpu"))
    served = run("job", "submit", "-c", "echo", "--stack", "local", "--framework", "jax")
    assert "-pod-pjrt for the stack local serves its chips to TensorFlow by gRPC" in served.err


def test_tensorflow_is_refused_on_a_machine_of_compute_engine_without_it(
    run: Run, queue: Queue, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stack_with_jobs(project, queue)
    monkeypatch.chdir(project)
    config = yaml.safe_load(file.read_text())
    config["config"] |= {
        "tpu-stack:architecture": "compute",
        "tpu-stack:zone": "us-east5-a",
        "tpu-stack:tpu": {"acceleratorType": "ct6e-standard-4t"},
        "tpu-stack:training": {"runOn": "tpu"},
    }
    del config["config"]["tpu-stack:vm"]
    file.write_text(yaml.safe_dump(config))
    submit = ("job", "submit", "-c", "true", "--stack", "local", "--framework")
    done = run(*submit, "tensorflow")
    assert done.code == 2
    assert "training.tensorflowVersion is not set for the stack local" in done.err
    assert run(*submit, "jax").code == 0


def test_a_framework_is_refused_on_a_slice_whose_hosts_do_not_run_it(
    run: Run, queue: Queue, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stack_with_jobs(project, queue)
    text = file.read_text()
    monkeypatch.chdir(project)
    old = run("job", "submit", "-c", "echo", "--stack", "local", "--framework", "jax").out.strip()
    queued = len(queue.summaries())

    def refused(*verb: str) -> str:
        done = run("job", *verb, "--stack", "local")
        assert done.code == 2, done.err
        assert len(queue.summaries()) == queued
        return done.err

    on_vm = text.replace("v2-8", "v2-32")
    on_tpu = on_vm.replace("runOn: vm", "runOn: tpu")
    sweep = ("sweep", "--param", "x=1,2", "--trials", "2")
    new = [(*verb, "-c", "t", "--framework", "jax") for verb in (("submit",), sweep)]
    for place in (on_vm, on_tpu):
        file.write_text(place)
        for verb in (*new, ("resubmit", old)):
            said = refused(*verb)
            assert "--framework jax: the v2-32 of the stack local has 4 hosts" in said
            assert "set training.runOn: tpu and a tpu.runtimeVersion without -pod" in said

    without_grpc = on_tpu.replace("-pod-pjrt", "-pjrt")
    file.write_text(without_grpc)
    by_grpc = refused("submit", "-c", "t", "--framework", "tensorflow")
    assert "by the gRPC of a -pod runtime" in by_grpc
    assert "by the gRPC of a -pod runtime" in refused(*sweep)
    file.write_text(without_grpc.replace("acceleratorType:", "slices: 2\n    acceleratorType:"))
    assert "set tpu.slices: 1" in refused(*new[0])

    file.write_text(without_grpc)
    for framework in ("jax", "pytorch", "none"):
        done = run("job", "submit", "-c", "true", "--stack", "local", "--framework", framework)
        assert done.code == 0, done.err
        assert "runOn" not in done.err


def test_a_bucket_without_permission_says_which_role_is_missing(
    job: Run, queue: Queue, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    stranger = client.as_member("user:eve@example.com")
    monkeypatch.setattr("tpustack.jobs.queue.Google", lambda: Google(stranger.session))
    done = job("submit", "-c", "true")
    assert done.code == 1
    assert "you may not use gs://a-bucket: ask for roles/storage.objectUser" in done.err
    assert everything(queue) == []
