from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_env_speaks_shell_and_json_and_takes_itself_back(started: Run, home: Path) -> None:
    names = set(json.loads(started("env", "--json").stdout))
    said = started("env").stderr
    assert all(name in said for name in names)
    assert "python -m localcloud env --unset" in said
    assert {"HTTPS_PROXY", "SSL_CERT_FILE", "GOOGLE_OAUTH_ACCESS_TOKEN"} <= names
    script = f"{started('env').stdout}\nenv"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert names <= {line.partition("=")[0] for line in done.stdout.splitlines()}
    script = f"{started('env').stdout}\n{started('env', '--unset').stdout}\nenv"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert "GOOGLE_OAUTH_ACCESS_TOKEN" not in done.stdout


def test_credentials_are_readable_by_their_owner_alone(started: Run, home: Path) -> None:
    started("env")
    for name in ("secret", "application_default_credentials.json"):
        assert (home / name).stat().st_mode & 0o077 == 0


def test_googles_library_renews_its_token_at_the_local_cloud(
    started: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    google_auth = pytest.importorskip("google.auth")
    transport = pytest.importorskip("google.auth.transport.requests")
    for name, value in json.loads(started("env", "--json").stdout).items():
        monkeypatch.setenv(name, value)
    credentials, project = google_auth.default()
    credentials.refresh(transport.Request())
    assert credentials.valid
    assert project == "tpu-stack-local"


def test_the_admin_api_needs_the_key(started: Run) -> None:
    port = json.loads(started("status", "--json").stdout)["port"]
    for headers in ({}, {"Local-Cloud": "admin"}, {"Local-Cloud": "0" * 64}):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/_local/v1/credentials", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 404
        assert b"token" not in answer.read()
        connection.close()


def test_faults_are_listed_and_cleared(started: Run) -> None:
    lost = ("--carried-out", "--status", "0", "--count", "2")
    assert started("faults", "add", "storage.objects.*", *lost).returncode == 0
    assert started("faults", "stockout", "us-central1-b", "v2-8").returncode == 0
    assert started("faults", "quota", "TPUV2sPerProjectPerZoneForTPUAPI", "8").returncode == 0
    assert started("faults", "set", "deny-tpu-nodes", '{"on": false}').returncode == 0
    listed = json.loads(started("faults", "list").stdout)
    [fault] = listed["calls"].values()
    assert fault["method"] == "storage.objects.*"
    assert fault["carried_out"]
    assert listed["stockout"] == {"us-central1-b": ["v2-8"]}
    assert listed["deny-tpu-nodes"] == {"on": False}
    assert started("faults", "clear").returncode == 0
    assert json.loads(started("faults", "list").stdout) == {"calls": {}}


def test_wrong_faults_are_refused_naming_all_that_is_wrong(started: Run) -> None:
    done = started("faults", "add", "storage.*", "--status", "200", "--probability", "7")
    assert done.returncode == 2
    assert "status" in done.stderr
    assert "probability" in done.stderr
    done = started("faults", "stockout", "us-nowhere1-b", "v2-9")
    assert done.returncode == 2
    assert "us-nowhere1-b" in done.stderr
    assert "v2-9" in done.stderr
    assert started("faults", "quota", "TPUs", "many").returncode == 2
    assert started("faults", "preempt", "nothing").returncode == 2


def test_forward_sets_the_clock_ahead_and_never_back(started: Run) -> None:
    assert started("forward", "3600").returncode == 0
    shown = started("forward", "-1")
    assert (shown.returncode, "not above 0" in shown.stderr) == (2, True)


def test_logs_show_requests_and_unknown_machines_are_named(started: Run) -> None:
    assert "listens" in started("logs").stdout
    assert started("logs", "requests").returncode == 0
    done = started("logs", "nowhere")
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_the_home_may_come_from_the_environment(started: Run, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "localcloud", "status"],
        env={**os.environ, "LOCALCLOUD_HOME": str(home)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", ["--help", "faults add --help", "--version", "env --unset"])
def test_a_closed_pipe_ends_a_command_without_an_error(arguments: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "localcloud", *arguments.split()],
        env={**os.environ, "LOCALCLOUD_HOME": str(tmp_path)},
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    complaints = [
        line for line in done.stderr.splitlines() if "Traceback" in line or "rror" in line
    ]
    assert (done.returncode, complaints) == (0, [])


def test_a_closed_pipe_does_not_hide_that_a_command_failed() -> None:
    program = (
        "import sys\nfrom localcloud import cli\n"
        "@cli.cli.command()\ndef fails():\n    print('nothing works')\n    return 1\n"
        "sys.exit(cli.main(['fails']))\n"
    )
    read, write = os.pipe()
    os.close(read)
    # Buffered, so that the pipe breaks when the command has returned.
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", program], env=buffered, stdout=write, check=False)
    os.close(write)
    assert done.returncode == 1
