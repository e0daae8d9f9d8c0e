"""What libtpu wrote of recorded/step.mlir for two cores of a v3-8.

Made by compiling it as `compile_program(program, Topology("v3-8", "v3:2x2x1"), full=True)` does,
with each of the two versions that the folders are named after; only the files' names are shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tpu_training.compile.answer import Argument, Program
from tpu_training.compile.compiler import Dump
from tpu_training.compile.hlo import Module, parse_module

RECORDED = Path(__file__).parent / "recorded"
VERSIONS = ("0.0.52", "0.0.21")
WEIGHTS = Argument("weights", "weights", 256 * 512 * 4)
FEATURES = Argument("features", "input", 100 * 256 * 4)


@pytest.fixture(params=VERSIONS)
def dump(request: pytest.FixtureRequest) -> Dump:
    return Dump(RECORDED / request.param)


@pytest.fixture
def module(dump: Dump) -> Module:
    return parse_module(dump.text("after_optimizations"))


@pytest.fixture
def step() -> Program:
    hlo = (RECORDED / "step.mlir").read_bytes()
    return Program("step.mlir", hlo, "mlir", 2, (WEIGHTS, FEATURES))


@pytest.fixture
def parsed() -> Callable[[str], Module]:
    """Parses the body of an entry computation."""

    def parse(body: str, others: str = "") -> Module:
        return parse_module(f"HloModule m\n\n{others}ENTRY %main () -> f32[] {{\n{body}\n}}\n")

    return parse
