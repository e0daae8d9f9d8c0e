"""A preview loads what it needs: importing is most of what it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The program without an engine: declares the stack in a file and prints what is loaded then.
PROGRAM = """
import sys
from pathlib import Path

import pulumi
from pulumi.runtime import mocks

import tpu_infra.apis
import tpu_infra.settings.parse
from tpu_infra.catalog import Catalog
from tpu_infra.checks import ensure_valid
from tpu_infra.checks.context import Context
from tpu_infra.components import services
from tpu_infra.names import names_of
from tpu_infra.program import declare
from tpu_infra.settings.parse import load_stack_file


class Engine(mocks.Mocks):
    def new_resource(self, args):
        return "", dict(args.inputs)

    def call(self, args):
        return {}, []


services.until_they_answer = lambda: None
mocks.set_mocks(Engine(), preview=True)
settings = load_stack_file(Path(sys.argv[1]))
context = Context("local", Path(sys.argv[2]), Catalog(), names_of(settings, "local"))


@pulumi.runtime.test
def run():
    declare(ensure_valid(settings, context))


run()
print("LOADED", *sys.modules)
"""
HEAVY = (
    "tensorflow",
    "numpy",
    "google.auth",
    "google.cloud",
    "googleapiclient",
    "requests",
    "urllib3",
    "pydantic.v1",
    "rich",
    "click",
    # Declared by some stacks, not by this one.
    "pulumi_gcp.monitoring._inputs",
    "pulumi_gcp.kms.crypto_key",
    "tpu_infra.resources",
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    root = tmp_path_factory.mktemp("root")
    (root / "dist").mkdir()
    (root / "dist" / "tpu_stack_training-0.1.0-py3-none-any.whl").write_bytes(b"a wheel")
    data = root / ".demo" / "data"
    data.mkdir(parents=True)
    (data / "manifest.json").write_text("{}")
    stack = ROOT / "stacks" / "Pulumi.local.yaml"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(stack), str(root)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("LOADED "))
    return set(line.split())


@pytest.mark.slow
def test_the_program_declares_the_stack_where_its_imports_are_looked_at(loaded: set[str]) -> None:
    assert {"pulumi_gcp.tpu.v2_vm", "tpu_infra.components.bucket"} <= loaded


@pytest.mark.slow
@pytest.mark.parametrize("module", HEAVY)
def test_a_preview_does_not_import(module: str, loaded: set[str]) -> None:
    assert not {name for name in loaded if f"{name}.".startswith(f"{module}.")}
