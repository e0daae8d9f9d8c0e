"""What ends a paid TPU starts on a machine whose disk is full."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import tpu_agent

STARTUP = Path(tpu_agent.__file__).parent / "startup"
# Nothing can be written below HOME, as on a full disk; systemd-run says what it is to run.
FAKES = """
attribute() { [ "$1" != tpu-form ] && echo "# the $1"; }
systemctl() { return 1; }
systemd-run() { echo "runs ${*: -1}"; }
require_scope() { echo training; exit 1; }
mkdir() { [[ "$*" != *"$HOME"* ]] && command mkdir "$@"; }
"""


def test_the_agent_starts_though_nothing_can_be_written_to_the_disk(tmp_path: Path) -> None:
    home, memory = tmp_path / "home", tmp_path / "run"
    home.touch()
    vm = (STARTUP / "vm.sh").read_text(encoding="utf-8")
    script = tmp_path / "script.sh"
    common = (STARTUP / "common.sh").read_text(encoding="utf-8")
    script.write_text("\n".join((common, FAKES, vm)), encoding="utf-8")
    environment = os.environ | {"HOME": str(home), "XDG_RUNTIME_DIR": str(memory)}
    done = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert f"runs {memory}/tpu-stack/agent.py\n" in done.stdout, done.stderr
    assert (memory / "tpu-stack" / "agent.py").read_text(encoding="utf-8") == "# the agent\n"
    assert done.stdout.endswith("training\n")
    # The group that keeps the VM hears that its script has failed.
    assert (memory / "tpu-stack" / "failed").exists()
