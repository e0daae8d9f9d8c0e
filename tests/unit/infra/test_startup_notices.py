"""A TPU VM tells the trainer on another machine of what Google announces for it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tpu_agent.bundle import startup_script

QUIET = {"preempted": "FALSE", "maintenanceEvent": "NONE", "attributes": {"a": "TRUE"}}

# The metadata server answers with the next file each time, then the machine is gone; uploads fail
# as often as the file `refusals` says.
STUBS = r"""
set -euo pipefail
curl() {
  echo "${@: -1}" >>asked
  next="$(find . -name 'answer-*' | sort | head --lines=1)"
  [[ -n "$next" ]] || return 22
  cat "$next" && rm "$next"
}
as_machine() {
  echo "$5 to ${@: -1}" >>told
  [[ ! -s refusals ]] || { : >refusals; return 22; }
}
sleep() { compgen -G 'answer-*' >/dev/null || exit 0; }
"""


def told(folder: Path, *instances: object, refused: str = "") -> list[str]:
    """What a host uploads while its metadata is these, one after the other."""
    for number, instance in enumerate(instances):
        answer = f"HTTP/1.1 200 OK\r\nETag: e{number}\r\n\r\n{json.dumps(instance)}"
        (folder / f"answer-{number}").write_text(answer)
    (folder / "refusals").write_text(refused)
    text = startup_script("tpu_vm.sh")
    functions = re.findall(r"^(?:announced|tell_notices)\(\) \{\n.*?^\}\n", text, re.M | re.S)
    script = f"METADATA=http://m\n{''.join(functions)}\n{STUBS}\ntell_notices https://bucket/object"
    run = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    path = folder / "told"
    return path.read_text().splitlines() if path.exists() else []


def test_it_says_nothing_while_nothing_is_announced(tmp_path: Path) -> None:
    assert told(tmp_path, QUIET, QUIET, QUIET | {"upcomingMaintenance": ""}) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "notice",
    [
        {"preempted": "TRUE"},
        {"maintenanceEvent": "TERMINATE_ON_HOST_MAINTENANCE"},
        {"upcomingMaintenance": {"maintenanceStatus": "PENDING"}},
    ],
)
def test_each_notice_is_told_once(tmp_path: Path, notice: dict[str, object]) -> None:
    ((key, value),) = notice.items()
    lines = told(tmp_path, QUIET, QUIET | notice, QUIET | notice, QUIET, QUIET | notice)
    assert lines == [f"{key}={value} to https://bucket/object"] * 2


def test_the_next_request_waits_for_a_change_of_the_last_answer(tmp_path: Path) -> None:
    told(tmp_path, QUIET, QUIET)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.rpartition("=")[2] for line in asked] == ["0", "e0", "e1"]


def test_a_notice_that_the_bucket_did_not_take_is_told_again(tmp_path: Path) -> None:
    preempted = QUIET | {"preempted": "TRUE"}
    assert len(told(tmp_path, preempted, preempted, preempted, refused="once")) == 2
