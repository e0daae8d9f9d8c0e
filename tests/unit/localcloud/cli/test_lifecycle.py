from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from localcloud import lifecycle
from localcloud.lifecycle import run_file, running
from tests.patience import until

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def status(run: Run) -> dict[str, object]:
    done = run("status", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_started_cloud_answers_and_a_second_start_finds_it(started: Run) -> None:
    first = status(started)
    assert first["project"] == "tpu-stack-local"
    assert first["resources"] == {}
    again = started("start")
    assert again.returncode == 0
    assert "already" in again.stdout
    assert status(started)["pid"] == first["pid"]


def test_its_home_and_files_are_its_owners_and_a_start_says_what_is_not(
    run: Run, home: Path
) -> None:
    # As an earlier version made it.
    home.mkdir(mode=0o755)
    (home / "secret").write_bytes(b"x" * 32)
    (home / "secret").chmod(0o600)
    said = run("start").stdout
    assert "other users of this computer have no access, except to TPU workers" in said
    assert said.count("\n") == 2
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    open_to_others = {
        path.name: oct(path.stat().st_mode) for path in home.iterdir() if path.stat().st_mode & 0o77
    }
    assert open_to_others == {}


def test_start_refuses_a_home_that_belongs_to_others(run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "theirs").write_text("theirs")
    done = run("start", home=shared)
    assert done.returncode == 2
    assert "other users may enter it, and it holds other files" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in shared.iterdir()] == ["theirs"]
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


def test_two_starts_at_once_make_one_cloud(run: Run, home: Path) -> None:
    command = [sys.executable, "-m", "localcloud", "start", "--home", str(home)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=90)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    ports = {text.splitlines()[0].rpartition(":")[2] for text in said}
    assert len(ports) == 1


def test_a_cloud_whose_starter_was_killed_does_not_come_up(run: Run, home: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = run("start", "--foreground", "--port", "0", "--starter", str(ended.pid))
    assert (done.returncode, done.stderr) == (1, "error: the command that started it has ended\n")
    assert running(home) is None


def test_an_earlier_clouds_run_file_is_not_taken_for_that_of_the_one_which_answers(
    started: Run, home: Path
) -> None:
    known = running(home)
    assert known
    run_file(home).write_text(json.dumps({**known, "pid": os.getpid()}), encoding="utf-8")
    assert running(home) is None


def test_the_port_stays_the_same_over_a_restart(started: Run) -> None:
    before = status(started)["port"]
    assert started("stop").returncode == 0
    assert started("start").returncode == 0
    assert status(started)["port"] == before


def test_a_start_takes_another_port_where_somebody_has_the_last_one(started: Run) -> None:
    before = int(str(status(started)["port"]))
    assert started("stop").returncode == 0
    with socket.create_server(("127.0.0.1", before)):
        done = started("start")
        assert done.returncode == 0, done.stderr
        assert status(started)["port"] != before


def test_a_long_log_of_requests_starts_again_and_the_last_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_LOG_BYTES", 100)
    log = lifecycle.RequestsLog(tmp_path / "requests.log")
    for number in range(5):
        log.write(f"200 storage.buckets.get GET /b/{number} 0 ms")
    before = (tmp_path / "requests.log.1").read_text().splitlines()
    lines = before + (tmp_path / "requests.log").read_text().splitlines()
    assert [line.split()[5][-1] for line in lines] == ["2", "3", "4"]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} 200 ", lines[0])


def test_commands_say_that_nothing_runs(run: Run) -> None:
    assert run("status").returncode == 3
    assert run("stop").returncode == 0
    for command in (["env"], ["faults", "list"], ["logs", "vm"]):
        done = run(*command)
        assert done.returncode == 3
        assert "is not running" in done.stderr
        assert done.stdout == ""


def test_a_cloud_that_is_killed_while_it_answers_is_an_error_with_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "secret").write_bytes(b"secret")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def break_off() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

        known = {"pid": os.getpid(), "port": server.getsockname()[1]}
        monkeypatch.setattr(lifecycle, "running", lambda home: known)
        answering = threading.Thread(target=break_off)
        answering.start()
        with pytest.raises(lifecycle.CommandError, match="doesn't answer"):
            lifecycle.ask(home, "GET", "status")
        answering.join()


def test_a_killed_cloud_starts_again_with_its_state(started: Run, home: Path) -> None:
    environment = json.loads(started("env", "--json").stdout)
    session = client(environment)
    url = "https://storage.googleapis.com/storage/v1/b"
    body = {"name": "kept-bucket", "location": "us-central1"}
    assert session.post(url, params={"project": "tpu-stack-local"}, json=body).ok
    pid = int(str(status(started)["pid"]))
    os.kill(pid, signal.SIGKILL)
    until(lambda: started("status").returncode == 3)
    assert started("start").returncode == 0
    assert status(started)["resources"] == {"buckets": 1}
    # The environment of a shell outlives the restart: same port, same keys.
    assert client(environment).get(f"{url}/kept-bucket").ok


def test_a_taken_port_is_a_clear_failure(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("start", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "--port" in done.stderr
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_input_is_refused_with_exit_code_2(run: Run, tmp_path: Path) -> None:
    assert run("start", "--port", "70000").returncode == 2
    assert run("start", "--latency", "slow").returncode == 2
    file = tmp_path / "file"
    file.touch()
    done = run("start", home=file / "below")
    assert done.returncode == 2
    assert "--home" in done.stderr


def test_reset_forgets_what_the_cloud_made_and_nothing_else(started: Run, home: Path) -> None:
    environment = json.loads(started("env", "--json").stdout)
    url = "https://storage.googleapis.com/storage/v1/b"
    body = {"name": "gone-bucket", "location": "us-central1"}
    assert client(environment).post(url, params={"project": "tpu-stack-local"}, json=body).ok
    (home / "notes.txt").write_text("the user's own")
    assert started("reset").returncode == 0
    assert started("status").returncode == 3
    assert (home / "notes.txt").exists()
    assert started("start").returncode == 0
    assert status(started)["resources"] == {}
    # Its port may be another program's by now.
    environment = json.loads(started("env", "--json").stdout)
    assert client(environment).get(f"{url}/gone-bucket").status_code == 404


def client(environment: dict[str, str]) -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.proxies = {"https": environment["HTTPS_PROXY"]}
    session.verify = environment["REQUESTS_CA_BUNDLE"]
    session.headers["Authorization"] = f"Bearer {environment['GOOGLE_OAUTH_ACCESS_TOKEN']}"
    return session
