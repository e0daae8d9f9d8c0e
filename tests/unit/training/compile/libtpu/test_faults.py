"""What goes wrong with the compiler: one message each that says what to do."""

from __future__ import annotations

import importlib.util
import platform
import signal
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpu_training.compile import compiler
from tpu_training.compile.answer import Compiled, Program, Topology
from tpu_training.compile.compiler import Libtpu, find_libtpu
from tpu_training.errors import EXIT_WRONG_INPUT, InputError

LIBTPU = Libtpu(Path("libtpu.so"), "0.0.21")
PROGRAM = Program("train", b"", "hlo", 16)
V3 = Topology("v3-8", "v3:2x2x1")


def test_without_libtpu_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(InputError, match=r"pip install 'tpu-stack-training\[compile\]'"):
        find_libtpu()


def test_a_nightly_libtpu_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def version(package: str) -> str:
        if package != "libtpu-nightly":
            raise PackageNotFoundError(package)
        return "0.1.dev20261101"

    (tmp_path / "libtpu.so").touch()
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("importlib.metadata.version", version)
    assert find_libtpu() == Libtpu(tmp_path / "libtpu.so", "0.1.dev20261101")


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64"), ("win32", "AMD64")]
)
def test_machines_that_libtpu_is_not_made_for_get_another_way(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(
        InputError, match=rf"Linux x86-64 only, .*{machine}; compile in a container"
    ):
        find_libtpu()


def test_a_libtpu_older_than_tensorflow_says_to_upgrade_it() -> None:
    log = (
        "WARNING: Logging before InitGoogle() is written to STDERR\n"
        "F0000 00:00:1795339671.8 259 hlo_instruction.h:1] Check failed: unique_id_ < INT32_MAX "
        "(4294967297 vs. 2147483647) int32_t unique_id was requested but unique_id was written "
        "as a 64-bit integer: 4294967297\n*** SIGABRT received ***\n"
    )
    error = compiler.crashed(LIBTPU, PROGRAM, -signal.SIGABRT, log)
    assert error.exit_code == EXIT_WRONG_INPUT
    assert "pip install --upgrade libtpu" in str(error)
    assert "Check failed: unique_id_ < INT32_MAX (4294967297 vs. 2147483647)" in str(error)


def test_a_crash_names_the_signal_and_the_reason() -> None:
    log = "F0000 00:00:1795339671.8 259 a.cc:1] Check failed: x > 0\n*** trace\n"
    error = compiler.crashed(LIBTPU, PROGRAM, -signal.SIGABRT, log)
    assert str(error).startswith(
        "libtpu 0.0.21 crashed on 'train': it ended by SIGABRT [Check failed: x > 0]"
    )


def test_a_killed_compiler_says_that_memory_may_be_short() -> None:
    error = compiler.crashed(LIBTPU, PROGRAM, -signal.SIGKILL, "")
    assert "killed (SIGKILL)" in str(error)
    assert "when memory runs out" in str(error)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"topology_error": "no such"}, r"TPU v3-8 \(v3:2x2x1\): no such"),
        ({"too_few_devices": 8}, r"16 cores \(replicas=16, partitions=1\), but v3-8 has 8"),
        ({"error": "UNIMPLEMENTED: Fft\nof complex"}, "refuses 'train' .*: UNIMPLEMENTED: Fft of"),
    ],
)
def test_programs_that_the_compiler_refuses_are_wrong_input(
    answer: dict[str, object], said: str
) -> None:
    error = compiler.refused(answer, PROGRAM, V3)
    assert error.exit_code == EXIT_WRONG_INPUT
    with pytest.raises(InputError, match=said):
        raise error


def test_a_program_that_needs_no_memory_of_its_own_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "answer.json").write_text('{"needed_bytes": 0}')
    known = Compiled("train", V3, LIBTPU.name, 0, 1, (), ())
    monkeypatch.setattr(compiler._Compilation, "_read", lambda _: known)
    work = compiler._Compilation(tmp_path, LIBTPU, PROGRAM, V3)
    assert work._end(0, full=False) == known
