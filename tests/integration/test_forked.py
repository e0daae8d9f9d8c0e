"""What the integration tests' programs run in behaves as Python does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE

SAYS = "import os, sys; print(sys.argv, os.getcwd(), os.environ['WORD'], sys.stdin.read())"
ENDS = {
    "well": "",
    "with a code": "sys.exit(7)",
    "with a text": "sys.exit('why')",
    "with more to do": """import atexit, threading, time
atexit.register(print, "last")
threading.Thread(target=lambda: (time.sleep(0.5), print("late"))).start()
sys.exit(3)""",
    "with an import of its own": "import beside; print(beside.WORD)",
}


@pytest.fixture
def python(quick_python: Path) -> Path:
    return quick_python / "bin" / "python"


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_program_says_and_ends_as_in_a_python_of_its_own(
    end: str, python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{SAYS}\n{end}\n", encoding="utf-8")
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n", encoding="utf-8")

    def run(python: str | Path) -> tuple[int, str, str]:
        done = subprocess.run(
            [python, script, "-x", "an argument"],
            cwd=tmp_path,
            env={**os.environ, "WORD": "word"},
            input="given",
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert run(python) == run(sys.executable)


def test_a_program_is_killed_with_the_process_that_asked_for_it(
    python: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    # As Pulumi's plugins write their port: not as text, and with nothing that pushes it out.
    says = "sys.stdout.buffer.write(f'{os.getpid()}\\n'.encode())"
    script.write_text(f"import os, sys, time\n{says}\ntime.sleep(600)\n", encoding="utf-8")
    with subprocess.Popen([python, script], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        program = psutil.Process(int(asking.stdout.readline()))
        assert program.pid != asking.pid
        asking.kill()
    program.wait(PATIENCE)
