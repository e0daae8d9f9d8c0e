"""Google's compiler itself, on programs that take it a second; and its end by all means."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.patience import PATIENCE, until
from tests.unit.training.compile.libtpu.conftest import WEIGHTS
from tpu_training.compile import compiler, pjrt
from tpu_training.compile.answer import Compiled, Program, Topology
from tpu_training.compile.compiler import compile_program
from tpu_training.compile.pjrt import Compiler, PjrtError
from tpu_training.errors import TrainingError

pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu"),
]

V3 = Topology("v3-8", "v3:2x2x1")


@pytest.fixture(autouse=True)
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test does, it leaves no folder and no process."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    # As on a machine that drives a TPU elsewhere: the compiler is loaded all the same.
    monkeypatch.setenv("TPU_LOAD_LIBRARY", "0")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert list(folder.iterdir()) == []
    assert children() == []


def children() -> list[str]:
    """The processes that this one started and that still run."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    return [pid for file in tasks.glob("*/children") for pid in file.read_text().split()]


def compiled_fully(step: Program) -> tuple[Compiled, list[float]]:
    seen: list[float] = []
    return compile_program(step, V3, full=True, progress=seen.append), seen


def test_the_answer_is_known_before_code_is_generated_and_stays_the_same(step: Program) -> None:
    quick = compile_program(step, V3)
    full, seen = compiled_fully(step)
    assert quick.estimate is None
    assert dataclasses.replace(full, estimate=None) == quick
    assert full.estimate
    assert full.estimate.cycles
    # Its own account of the finished program.
    assert quick.needed_bytes == pytest.approx(full.estimate.needed_bytes, rel=0.05)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XLA_FLAGS", "--xla_no_such_flag=1"),
        ("LIBTPU_INIT_ARGS", "--no_such_flag=1"),
        ("TPU_CHIPS_PER_HOST_BOUNDS", "1,1,1"),
    ],
)
def test_the_users_settings_of_other_programs_change_nothing(
    step: Program, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert compile_program(step, V3).fits


def test_a_program_on_more_cores_than_there_are_is_refused(step: Program) -> None:
    many = dataclasses.replace(step, replicas=16)
    with pytest.raises(TrainingError, match="is for 16 cores"):
        compile_program(many, V3)


def test_the_limit_is_that_of_the_core(step: Program) -> None:
    assert compile_program(step, V3).limit_bytes == 16624107520
    megacore = Topology("v4-8", "v4:2x2x1", {"chip_config_name": "megacore"})
    assert compile_program(step, megacore).limit_bytes == 33014413312


def test_a_library_that_does_not_say_the_limit_does_so_in_an_error() -> None:
    class Refusing:
        """libtpu 0.0.21, as far as the limit goes."""

        def device_attributes(self) -> list[dict[str, int]]:
            return [{"num_cores": 1}]

        def compile(self, code: bytes, format: str, options: bytes) -> int:
            raise PjrtError("Ran out of memory in memory space hbm. Used 256.00G of 15.48G hbm.")

    assert pjrt.hbm_limit(cast("Compiler", Refusing())) == int(15.48 * 2**30)
    answer = compile_program(Program("too large", pjrt._TOO_LARGE, "mlir"), V3)
    assert pjrt.limit_in(str(answer.error)) == pytest.approx(answer.limit_bytes, rel=1e-3)


def program(body: str, name: str = "own.mlir") -> Program:
    return Program(name, f"module @own {{\n{textwrap.dedent(body)}\n}}\n".encode(), "mlir")


def test_a_program_that_does_not_fit_says_what_takes_the_memory() -> None:
    square = "tensor<65536x65536xf32>"
    too_large = program(f"""
        func.func public @main(%x: tensor<65536x128xf32>) -> tensor<65536xf32> {{
          %none = stablehlo.constant dense<0.0> : tensor<f32>
          %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1]
              : (tensor<65536x128xf32>, tensor<65536x128xf32>) -> {square}
          %s = "stablehlo.sort"(%y) ({{
            ^bb0(%a: tensor<f32>, %b: tensor<f32>):
              %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
              stablehlo.return %c : tensor<i1>
          }}) {{dimension = 0 : i64}} : ({square}) -> {square}
          %z = stablehlo.reduce(%s init: %none) applies stablehlo.add across dimensions = [1]
              : ({square}, tensor<f32>) -> tensor<65536xf32>
          return %z : tensor<65536xf32>
        }}""")
    answer = compile_program(too_large, V3)
    assert not answer.fits
    assert "Ran out of memory" in str(answer.error)
    assert answer.needed_bytes > answer.limit_bytes == 16624107520
    assert answer.buffers[0].bytes == 65536 * 65536 * 4
    # The line of the sort, as nothing names another file's.
    assert answer.buffers[0].where == "own.mlir:7"
    assert answer.costs is None


def test_a_broken_program_is_refused_in_the_compilers_words() -> None:
    with pytest.raises(TrainingError, match=r"refuses 'own.mlir' for v3-8: .*stablehlo.nonsense"):
        compile_program(program("stablehlo.nonsense"), V3)


def test_a_tpu_that_does_not_exist_is_refused(step: Program) -> None:
    with pytest.raises(TrainingError, match=r"doesn't know the TPU v9-8 \(v9:2x2x1\)"):
        compile_program(step, Topology("v9-8", "v9:2x2x1"))


TICKS = compiler.ticks
Ticks = Callable[["subprocess.Popen[bytes]", float], Iterator[float]]


def with_ticks(monkeypatch: pytest.MonkeyPatch, ticks: Ticks) -> None:
    monkeypatch.setattr(compiler, "ticks", ticks)


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGABRT, "it ended by SIGABRT"), (signal.SIGKILL, "when memory runs out")],
)
def test_the_end_of_the_compiler_is_an_error_not_the_end_of_the_command(
    step: Program, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, said: str
) -> None:
    def kill(child: subprocess.Popen[bytes], limit: float) -> Iterator[float]:
        child.send_signal(number)
        yield from TICKS(child, limit)

    with_ticks(monkeypatch, kill)
    with pytest.raises(TrainingError, match=said):
        compile_program(step, V3)


def test_a_compilation_that_takes_too_long_is_stopped(step: Program) -> None:
    with pytest.raises(TrainingError, match=r"'step.mlir' took longer than 0 s"):
        compile_program(step, V3, time_limit=1e-9)


def test_ctrl_c_ends_the_compiler(step: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(child: subprocess.Popen[bytes], limit: float) -> Iterator[float]:
        raise KeyboardInterrupt

    with_ticks(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        compile_program(step, V3)


# Starts a compilation, stops the child as soon as it is there, and says its number.
STOPPED = """
import os, signal, sys, time
from pathlib import Path
from tpu_training.compile import compiler
from tpu_training.compile.answer import Program, Topology

def stop(child, limit):
    os.kill(child.pid, signal.SIGSTOP)
    print(child.pid, flush=True)
    time.sleep(600)
    yield 0.0

compiler.ticks = stop
step = Program("step", Path(sys.argv[1]).read_bytes(), "mlir", 2)
compiler.compile_program(step, Topology("v3-8", "v3:2x2x1"))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_end_of_the_command_is_the_end_of_the_compiler_and_its_files(
    step: Program, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "step.mlir").write_bytes(step.hlo)
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "step.mlir")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(PATIENCE)
    # Nobody else is left to clean up: the child does, once it may run.
    os.kill(child, signal.SIGCONT)
    until(lambda: not Path(f"/proc/{child}").exists() or is_zombie(child))
    until(lambda: not any((tmp_path / "temporary").iterdir()))


@pytest.mark.parametrize("there", [False, True])
def test_a_lock_that_the_compiler_made_goes_with_it_if_the_command_was_killed(
    tmp_path: Path, there: bool
) -> None:
    lock, folder = tmp_path / "libtpu_lockfile", tmp_path / "folder"
    folder.mkdir()
    lock.touch()
    code = "import sys; from pathlib import Path; from tpu_training.compile import pjrt; "
    code += "pjrt._end_with_parent(*map(Path, sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(folder), *([] if there else [str(lock)])]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 1
    assert (lock.exists(), folder.exists()) == (there, False)


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and nobody has asked how, as in containers without an init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_lock_file_of_libtpu_goes_unless_it_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Program
) -> None:
    lock = tmp_path / "libtpu_lockfile"
    monkeypatch.setattr(pjrt, "LOCK_FILE", lock)

    def with_lock(child: subprocess.Popen[bytes], limit: float) -> Iterator[float]:
        lock.touch()
        yield from TICKS(child, limit)

    with_ticks(monkeypatch, with_lock)
    compile_program(step, V3)
    assert not lock.exists()
    lock.touch()
    compile_program(step, V3)
    assert lock.exists()


def test_the_usage_of_a_program_names_its_arguments(step: Program) -> None:
    answer = compile_program(step, V3)
    assert ("weights", WEIGHTS.bytes) in [(usage.kind, usage.bytes) for usage in answer.usage]
