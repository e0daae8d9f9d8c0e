from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import infra

COMMON = Path(infra.__file__).parent / "startup" / "common.sh"
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
