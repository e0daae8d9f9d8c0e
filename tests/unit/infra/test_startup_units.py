"""The units that start-up scripts run, as far as systemd itself can judge them without running."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tpu_agent
from tpu_agent.bundle import startup_script

_OF_THE_UNIT = ("StartLimitIntervalSec",)


def units(script: str) -> dict[str, dict[str, str]]:
    """The properties of each unit, by its name, as a script gives them to systemd-run."""
    text = startup_script(script).replace("\\\n", " ")
    found = {}
    for line in re.findall(r"^ *systemd-run (.*)$", text, re.M):
        (name,) = re.findall(r"--unit=(\S+)", line)
        found[name] = dict(re.findall(r"--property=(\w+)=(\S+)", line))
    return found


def unit_file(properties: dict[str, str]) -> str:
    of_unit = [f"{name}={text}" for name, text in properties.items() if name in _OF_THE_UNIT]
    rest = [f"{name}={text}" for name, text in properties.items() if name not in _OF_THE_UNIT]
    return "\n".join(["[Unit]", *of_unit, "[Service]", "ExecStart=/bin/true", *rest, ""])


@pytest.mark.parametrize("script", ["vm.sh", "tpu_vm.sh"])
def test_systemd_knows_every_property_and_value(script: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    found = units(script)
    assert found.keys() >= {"tpu-stack-agent", "jobs"}
    for name, properties in found.items():
        path = tmp_path / f"tpu-stack-{name}.service"
        path.write_text(unit_file(properties), encoding="utf-8")
        command = ["systemd-analyze", "verify", "--man=no", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # What it says of this machine's other units is not meant.
        assert [line for line in done.stderr.splitlines() if path.name in line] == []


@pytest.mark.parametrize("script", ["vm.sh", "tpu_vm.sh"])
def test_a_unit_that_is_always_started_again_has_no_limit_of_starts(script: str) -> None:
    """Five in ten seconds are systemd's limit otherwise, after which it stays away for good."""
    always = {
        name: properties
        for name, properties in units(script).items()
        if properties.get("Restart") == "always"
    }
    assert always.keys() == {"tpu-stack-agent", "jobs"} | (
        {"notices"} if script == "tpu_vm.sh" else set()
    )
    for properties in always.values():
        assert properties["StartLimitIntervalSec"] == "0"


JOBS = """
source {common}
attribute() {{ [[ "$1" != training-jobs ]] || echo "$ACCOUNT"; }}
ensure_tensorflow() {{ PYTHON=python3; }}
install_training() {{ PACKAGES=packages; }}
apt_get() {{ echo "apt-get $*"; [[ -z "$BROKEN" ]]; }}
tune2fs() {{ echo "tune2fs $*"; }}
findmnt() {{ echo /dev/sda1; }}
command() {{ [[ "$2" != nft ]] && builtin command "$@"; }}
systemd-run() {{ printf '%s\n' "$@"; }}
TENSORFLOW_PACKAGE=tensorflow-cpu
start_jobs t
"""


def jobs(home: Path, account: str, broken: str = "") -> subprocess.CompletedProcess[str]:
    home.chmod(0o700)
    common = Path(tpu_agent.__file__).parent / "startup" / "common.sh"
    return subprocess.run(
        ["bash", "-c", JOBS.format(common=common)],
        env={**os.environ, "HOME": str(home), "ACCOUNT": account, "BROKEN": broken},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_is_made_one_for_jobs_without_root_before_it_runs_any(tmp_path: Path) -> None:
    done = jobs(tmp_path, "jobs@p.iam.gserviceaccount.com")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[:3] == [
        "apt-get update",
        "apt-get install --yes nftables",
        "tune2fs -m 5 /dev/sda1",
    ]
    assert "--setenv=TPU_STACK_JOB_ACCOUNT=jobs@p.iam.gserviceaccount.com" in said
    assert tmp_path.stat().st_mode & 0o777 == 0o701


def test_without_a_packet_filter_no_job_runs(tmp_path: Path) -> None:
    done = jobs(tmp_path, "jobs@p.iam.gserviceaccount.com", "yes")
    assert done.returncode != 0
    assert "--unit=jobs" not in done.stdout


def test_jobs_that_the_stack_wants_as_root_change_nothing_of_the_machine(tmp_path: Path) -> None:
    done = jobs(tmp_path, "root")
    assert done.returncode == 0, done.stderr
    assert "apt-get" not in done.stdout
    assert "--setenv=TPU_STACK_JOB_ACCOUNT=root" in done.stdout
    assert tmp_path.stat().st_mode & 0o777 == 0o700
