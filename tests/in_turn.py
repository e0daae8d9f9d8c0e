"""Runs commands in one process, in turn: to start a Python and to import takes a second each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Each command ends as in a process of its own; its children write where it writes.
_IN_TURN = """
import json, os, sys, tempfile, traceback

def ended(run, arguments):
    try:
        code = run(arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        return 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        return 1
    return code or 0

def in_turn(run, commands):
    kept = os.dup(1), os.dup(2)
    for arguments in commands:
        sys.stdin.seek(0)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
            code = ended(run, arguments)
            sys.stdout.flush(), sys.stderr.flush()
            os.dup2(kept[0], 1), os.dup2(kept[1], 2)
            out.seek(0), err.seek(0)
            yield code, out.read().decode(), err.read().decode()
"""
_PRINT = """
print(json.dumps(list(in_turn(run, json.loads(sys.argv[1])))))
"""

Commands = dict[tuple[str, ...], "subprocess.CompletedProcess[str]"]


def run_in_turn(
    code: str, commands: Sequence[Sequence[str]], folder: Path, **environment: str
) -> Commands:
    """Call `run`, which this code defines, with the arguments of each command.

    Each finds "fine" at its standard input.
    """
    with tempfile.TemporaryFile() as fine:
        fine.write(b"fine\n")
        fine.flush()
        process = subprocess.run(
            [sys.executable, "-c", f"{_IN_TURN}{code}{_PRINT}", json.dumps(commands)],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=fine,
            capture_output=True,
            text=True,
            check=False,
        )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    return {
        tuple(command): subprocess.CompletedProcess(command, *result)
        for command, result in zip(commands, results, strict=True)
    }
