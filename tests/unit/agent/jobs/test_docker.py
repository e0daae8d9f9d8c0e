"""Jobs that name a container image, with Docker itself, where it is installed.

The image is made of this machine's own programs, and pulled from a registry on localhost.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.patience import until
from tests.serving import in_thread
from tests.unit.agent.jobs.test_container import NAME, Machine
from tpu_agent.jobs.container import CAUSES
from tpu_agent.jobs.queue import Outcome

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("docker")]

PROGRAMS = ("/bin/bash", "/bin/sleep", "/bin/cat")
DOCKER = "application/vnd.docker."


def docker(*arguments: str) -> str | None:
    """What Docker says; None if it fails."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The machine's daemon; where only the program is there, one without network."""
    if not shutil.which("docker"):
        pytest.skip("there is no Docker")
    if docker("info", "--format={{.ID}}"):
        yield
        return
    if not shutil.which("dockerd") or os.geteuid() != 0:
        pytest.skip("no Docker daemon answers, and none can be started")
    folder = tmp_path_factory.mktemp("dockerd")
    address = f"unix://{folder}/socket"
    places = [f"--{name}={folder}/{name}" for name in ("data-root", "exec-root", "pidfile")]
    command = ["dockerd", "--bridge=none", "--iptables=false", f"--host={address}", *places]
    with (
        pytest.MonkeyPatch.context() as patch,
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        patch.setenv("DOCKER_HOST", address)
        try:
            until(lambda: process.poll() is not None or docker("info", "--format={{.ID}}"))
            if process.poll() is not None:
                pytest.skip(f"dockerd doesn't start here: {(folder / 'log').read_text()[-500:]}")
            yield
        finally:
            process.terminate()
    # Docker leaves it mounted.
    subprocess.run(["umount", folder / "exec-root" / "netns" / "default"], check=False)


def layer(*programs: str) -> bytes:
    """Files of an image: programs, and the libraries that they load."""
    found = {path for program in programs for path in re.findall(r"/\S+", libraries(program))}
    files = {*programs, *found}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for file in sorted(files):
            archive.add(Path(file).resolve(), arcname=file)
    return content.getvalue()


def libraries(program: str) -> str:
    return subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """What a registry answers for two images: `tools`, and `empty`, which has no program."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, bytes]] = {"/v2/": ("application/json", b"{}")}
        self._add("tools", layer(*PROGRAMS))
        self._add("empty", layer())

    def _add(self, name: str, files: bytes) -> None:
        machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
        roots = {"type": "layers", "diff_ids": [digest(files)]}
        config = json.dumps({"architecture": machine, "os": "linux", "rootfs": roots}).encode()
        packed = gzip.compress(files, mtime=0)
        kinds = f"{DOCKER}container.image.v1+json", f"{DOCKER}image.rootfs.diff.tar.gzip"
        parts = []
        for kind, blob in zip(kinds, (config, packed), strict=True):
            parts.append({"mediaType": kind, "size": len(blob), "digest": digest(blob)})
            self.answers[f"/v2/{name}/blobs/{digest(blob)}"] = (kind, blob)
        kind = f"{DOCKER}distribution.manifest.v2+json"
        about = {"schemaVersion": 2, "mediaType": kind, "config": parts[0], "layers": parts[1:]}
        manifest = json.dumps(about).encode()
        for reference in ("1", digest(manifest)):
            self.answers[f"/v2/{name}/manifests/{reference}"] = (kind, manifest)

    @property
    def tools(self) -> str:
        return digest(self.answers["/v2/tools/manifests/1"][1])


@pytest.fixture(scope="module")
def registry(daemon: None) -> Iterator[tuple[str, Registry]]:
    known = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = known.answers.get(self.path, ("", b""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", digest(content))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"127.0.0.1:{server.server_address[1]}", known


@pytest.fixture
def machine(registry: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr("tpu_agent.jobs.container._PAUSES", (0.0, 0.0))
    yield Machine(tmp_path, monkeypatch)
    assert docker("ps", "--all", "--quiet", f"--filter=name={NAME}") == ""


@pytest.fixture
def image(registry: tuple[str, Registry]) -> str:
    return f"{registry[0]}/tools:1"


def test_docker_runs_a_job_and_its_record_has_the_registrys_digest(
    machine: Machine, image: str, registry: tuple[str, Registry]
) -> None:
    command = 'echo "$JOB_TRY $MINE" >"$ARTIFACTS_DIR/a"; echo here >file; exit 3'
    done = machine.runs(command, image, is_here=False, env={"MINE": "x\ny"})
    assert (done.why, done.code) == ("exited", 3)
    assert machine.bucket.things["jobs/one/artifacts/a"].data == b"1 x\ny\n"
    assert (machine.attempt.folder / "work" / "file").read_text() == "here\n"
    machine.attempt.finish(done)
    used = f"{registry[0]}/tools@{registry[1].tools}"
    assert machine.attempt.outcome() == Outcome("exited", 3, "", used)


@pytest.mark.parametrize(
    ("command", "name", "code"),
    [("/bin", "tools", 126), ("no-such", "tools", 127), ("true", "empty", 127)],
)
def test_docker_ends_with_the_codes_whose_causes_are_told(
    machine: Machine, image: str, command: str, name: str, code: int
) -> None:
    outcome = machine.runs(command, image.replace("tools", name), is_here=False)
    assert outcome == Outcome("exited", code, CAUSES[code])


def test_docker_takes_an_image_by_its_digest(
    machine: Machine, image: str, registry: tuple[str, Registry]
) -> None:
    pinned = f"{registry[0]}/tools@{registry[1].tools}"
    assert machine.runs("true", pinned, is_here=False).code == 0
    assert machine.attempt.container.image == pinned


def test_docker_misses_an_image(machine: Machine, image: str) -> None:
    missing = image.replace("tools", "no-such")
    assert f"--image: {missing} can't be pulled" in machine.runs("true", missing).said


def test_docker_gives_a_privileged_container_the_machines_devices(
    machine: Machine, image: str
) -> None:
    device = "--device=/dev/null"
    if not docker("run", "--rm", "--privileged", device, image, "/bin/bash", "-c", "echo it does"):
        pytest.skip("this machine may not start privileged containers")
    # No other container has them.
    there = [path for path in ("/dev/kmsg", "/dev/cpu_dma_latency") if Path(path).exists()]
    found = " && ".join(f"[ -e {path} ]" for path in there or ["/dev/null"])
    assert machine.runs(found, image).code == 0


def begin(machine: Machine, command: str, image: str) -> tuple[threading.Thread, list[Outcome]]:
    """Start an attempt in a thread, and wait until its command runs."""
    outcomes: list[Outcome] = []
    machine.prepare(command, image, is_here=False)
    thread = threading.Thread(target=lambda: outcomes.append(machine.supervisor().run()))
    thread.start()
    up = machine.attempt.folder / "work" / "up"
    until(lambda: up.exists() or outcomes)
    assert outcomes == []
    return thread, outcomes


def test_docker_brings_sigterm_to_the_program_which_may_save(machine: Machine, image: str) -> None:
    saves = "trap 'echo >saved; exit 75' TERM; echo >up; while :; do sleep 0.1; done"
    thread, outcomes = begin(machine, saves, image)
    machine.attempt.end("stopped")
    thread.join()
    assert outcomes[0].why == "stopped"
    assert (machine.attempt.folder / "work" / "saved").exists()


def test_a_container_whose_client_was_killed_is_removed_from_docker(
    machine: Machine, image: str
) -> None:
    thread, _ = begin(machine, "echo >up; sleep 600", image)
    # Another test, or another person's, may have a container of that name.
    own = f"--workdir={machine.attempt.folder}/work"
    clients = [
        each for each in psutil.process_iter(["cmdline"]) if own in (each.info["cmdline"] or ())
    ]
    assert clients
    for client in clients:
        client.kill()
    thread.join()
    assert docker("ps", "--quiet", f"--filter=name={NAME}") == ""
