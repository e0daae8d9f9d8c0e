import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import make_venv
import pytest
from packaging.requirements import Requirement

from tests.patience import until
from tests.watch import asked_hosts

INSTALL = Path(__file__).parents[3] / "tools" / "install.py"

# A compiler that takes for ever, and a child of its own as `go build` has.
ENDLESS_GO = """#!/bin/sh
case "$1" in
  env) echo go1.99.0 ;;
  list) ;;
  build) sleep 600 & echo $! > "$PID_FILE"; wait ;;
esac
"""


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_an_interrupted_build_leaves_no_process_and_no_folder(tmp_path: Path, times: int) -> None:
    go, pid_file = tmp_path / "bin" / "go", tmp_path / "pid"
    go.parent.mkdir()
    go.write_text(ENDLESS_GO)
    go.chmod(0o755)
    cache = tmp_path / "cache"
    environment = {
        "PATH": f"{go.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(cache),
        "PID_FILE": str(pid_file),
        "HTTPS_PROXY": "http://127.0.0.1:1",  # nothing answers there: as good as offline
    }
    process = subprocess.Popen(
        [sys.executable, str(INSTALL)], env=environment, stderr=subprocess.PIPE, text=True
    )
    until(lambda: pid_file.exists() and pid_file.read_text().strip() != "")
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in said
    child = int(pid_file.read_text())
    until(lambda: not runs(child))
    left = [path.name for path in (cache / "tpu-stack" / "toolchain").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_make_setup_asks_only_the_configured_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    once = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", "UV_NO_CONFIG": "1"}
    # In this order: uv's command has the word pip, too.
    fresh = {
        "uv": ["--dry-run", "--reinstall", "--no-cache"],
        "pip": ["--dry-run", "--ignore-installed", "--no-cache-dir"],
    }
    asked: dict[str, set[str]] = {}

    def try_out(command: list[str], environment: dict[str, str]) -> None:
        """Run pip and uv as far as the index, in this environment and without a change to it."""
        name = next((name for name in fresh if name in map(os.path.basename, command)), "")
        if not name or "--editable" in command:
            return
        here = [part.replace(str(tmp_path), sys.prefix) for part in command]
        with asked_hosts() as (hosts, variables):
            done = subprocess.run(
                [*here, *fresh[name]],
                env={**environment, **once, **variables},
                capture_output=True,
                check=False,
            )
        assert done.returncode != 0
        asked[name] = hosts

    monkeypatch.setattr(make_venv, "_run", try_out)
    make_venv._install(sys.executable, tmp_path, make_venv.FULL_LOCK)
    assert asked == {"pip": {"index.invalid"}, "uv": {"index.invalid"}}


def test_the_newest_python_is_taken_for_deploying_and_not_for_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert make_venv.find_python(make_venv.DEPLOYING) == sys.executable
    assert make_venv.find_python() is None


def test_who_has_no_python_for_a_task_learns_which_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_venv, "find_python", lambda suitable: None)
    for option, said in ((["--deploy"], "3.10 to 3.13. This"), ([], "3.10 to 3.12, for which")):
        monkeypatch.setattr(sys, "argv", ["make_venv.py", "--into=nothing", *option])
        assert make_venv.main() == 1
        assert f"error: this takes Python {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "lock", ["requirements-deploy.txt", "infra/tpu_infra/template/requirements.txt"]
)
def test_each_python_that_the_commands_run_on_gets_all_that_is_locked(lock: str) -> None:
    project = (make_venv.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ((oldest, after),) = re.findall(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', project)
    text = (make_venv.ROOT / lock).read_text(encoding="utf-8")
    pinned = [Requirement(line) for line in re.findall(r"^(\w.*?) \\$", text, re.MULTILINE)]
    for minor in range(int(oldest), int(after)):
        here = {"python_full_version": f"3.{minor}.0", "sys_platform": "linux"}
        got = {each.name for each in pinned if each.marker and each.marker.evaluate(here)}
        # Its classes are Python's own from 3.11 on.
        assert {each.name for each in pinned} - got <= {"exceptiongroup"}, minor
