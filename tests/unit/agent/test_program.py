"""The agent as one file on a machine: it runs with the standard library alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.serving import in_thread
from tpu_agent.bundle import program

# Prints how the program ends, and the most memory that it had, in KiB.
MEASURED = """
import re, runpy, sys
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except OSError as error:
    print(error)
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.fixture
def refusing_metadata() -> Iterator[str]:
    """A metadata server whose every answer is 404; its address as a proxy for http."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404, "no such entry")

        def log_message(self, *_: object) -> None:
            pass

    with in_thread(HTTPServer(("127.0.0.1", 0), Refusing)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_the_program_is_the_same_on_every_machine() -> None:
    assert program() == program()
    # Google takes 256 KiB in one value: docs.cloud.google.com/compute/docs/metadata/overview.
    assert len(program()) < 256 * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_it_starts_without_any_package_and_within_forty_mebibytes(
    tmp_path: Path, refusing_metadata: str
) -> None:
    """Up to its first question, which nobody answers here."""
    path = tmp_path / "agent.py"
    path.write_text(program())
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", MEASURED, str(path)],
        env={
            "PATH": os.environ["PATH"],
            "http_proxy": refusing_metadata,
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    said, most = ended.stdout.splitlines()
    assert said == "HTTP Error 404: no such entry"
    assert int(most) < 40 * 1024
    # Nothing else is written: the disk may be full.
    assert list(tmp_path.iterdir()) == [path]
