"""The units that start-up scripts run, as far as systemd itself can judge them without running."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.components.machine import startup_script

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
    assert found.keys() >= {"watchdog", "jobs"}
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
    assert always.keys() == {"watchdog", "jobs"} | ({"notices"} if script == "tpu_vm.sh" else set())
    for properties in always.values():
        assert properties["StartLimitIntervalSec"] == "0"
