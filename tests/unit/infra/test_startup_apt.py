"""Start-up scripts install packages although the image's own updates hold apt's locks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import tpu_agent

COMMON = Path(tpu_agent.__file__).parent / "startup" / "common.sh"
HELD = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 2023 (apt-get)"
# Fails for as long as the clock, which `sleep` moves, shows less than HELD_FOR.
APT = f"""
printf '%s\\n' "$*" >>"$HOME/calls"
(($(<"$HOME/clock") >= HELD_FOR)) || {{ echo "{HELD}" >&2; exit 100; }}
"""


def apt_get(folder: Path, held_for: int, call: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the script's functions, and an apt-get that somebody else locks."""
    (folder / "apt-get").write_text(f"#!/bin/bash\n{APT}", encoding="utf-8")
    (folder / "apt-get").chmod(0o755)
    (folder / "clock").write_text("0", encoding="utf-8")
    script = f"""
source {COMMON}
sleep() {{ SECONDS=$((SECONDS + $1)); echo $(($(<"$HOME/clock") + $1)) >"$HOME/clock"; }}
{call}
"""
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(folder), "PATH": path, "HELD_FOR": str(held_for)}
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("held_for", "calls"), [(0, 1), (25, 4), (590, 60)])
def test_apt_is_repeated_while_another_process_holds_its_lock(
    tmp_path: Path, held_for: int, calls: int
) -> None:
    done = apt_get(tmp_path, held_for, "apt_get install --yes python3-venv")
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    wanted = "--quiet --option DPkg::Lock::Timeout=60 install --yes python3-venv"
    assert made == [wanted] * calls
    assert done.stdout.count("apt-get install failed: it is run again") == calls - 1


def test_a_lock_that_is_never_released_ends_the_script_with_a_message(tmp_path: Path) -> None:
    done = apt_get(tmp_path, 10_000, "apt_get update; echo went on")
    assert done.returncode == 1
    assert "tpu-stack: apt-get update fails after ten minutes still" in done.stdout
    assert "went on" not in done.stdout
    assert HELD in done.stderr


def test_a_python_without_venv_gets_it_although_apt_is_locked_at_first(tmp_path: Path) -> None:
    call = """
log() { :; }
python3() {
  case "$*" in
    *ensurepip*) return 1 ;;
    *venv*) grep --quiet "install --yes python3-venv" "$HOME/calls" && exit 7 ;;
  esac
}
ensure_tensorflow 2.19.1 tensorflow-cpu
"""
    assert apt_get(tmp_path, 20, call).returncode == 7
