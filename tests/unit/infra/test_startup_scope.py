from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import tpu_agent

COMMON = Path(tpu_agent.__file__).parent / "startup" / "common.sh"
PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"


@pytest.mark.parametrize(
    ("scopes", "code"),
    [(PLATFORM, 0), (f"{READ_ONLY}\\n{PLATFORM}", 0), (READ_ONLY, 1), (f"{PLATFORM}.read-only", 1)],
)
def test_a_machine_without_the_full_scope_says_which_it_lacks(scopes: str, code: int) -> None:
    script = f"source {COMMON}; metadata() {{ printf '{scopes}\\n'; }}; require_scope"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert (f"lacks the access scope {PLATFORM}:" in done.stdout) == bool(code)


def test_a_machine_that_gets_no_matplotlib_trains_all_the_same(tmp_path: Path) -> None:
    script = f"""
source {COMMON}
attribute() {{ [[ "$1" == tensorflow-lock ]] && echo none; }}
python3() {{
  [[ "$2" == venv ]] || return 0
  mkdir -p "$4/bin"
  printf '#!/bin/bash\\n[[ "$*" != *matplotlib* ]]\\n' >"$4/bin/python3"
  chmod +x "$4/bin/python3"
}}
ensure_tensorflow 2.19.1 tensorflow-cpu
test -e "$BASE/venv-2.19.1/installed"
"""
    environment = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the training's report will have no charts" in done.stdout
