"""The script that the engine starts for the queue's resources."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import tpu_infra
from tpu_infra.resources import provider

SCRIPT = Path(tpu_infra.__file__).parent / "template" / "plugin" / "pulumi-resource-pulumi-python"


@pytest.mark.parametrize("program", [".", "infra"])
@pytest.mark.parametrize("named", [".venv", "{project}/elsewhere"])
def test_the_environment_that_pulumi_yaml_names_serves_the_queue(
    tmp_path: Path, named: str, program: str
) -> None:
    virtualenv = named.format(project=tmp_path)
    (tmp_path / "Pulumi.yaml").touch()
    (tmp_path / program).mkdir(exist_ok=True)
    python = tmp_path / virtualenv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$*"\n', encoding="utf-8")
    python.chmod(0o755)
    said = subprocess.run(
        [SCRIPT, "127.0.0.1:1234"],
        cwd=tmp_path / program,
        env={
            "PWD": str(tmp_path / program),
            "PATH": os.environ["PATH"],
            "PULUMI_RUNTIME_VIRTUALENV": virtualenv,
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "-u -m tpu_infra.resources.provider 127.0.0.1:1234\n"


def test_the_engine_starts_the_module_of_the_provider() -> None:
    *_, exec_line = SCRIPT.read_text(encoding="utf-8").splitlines()
    module = exec_line.split()[exec_line.split().index("-m") + 1]
    assert module == provider.__name__
