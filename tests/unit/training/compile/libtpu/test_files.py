"""Programs of other frameworks, read from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.training.compile.libtpu.conftest import RECORDED
from tpu_training.compile.pjrt import compile_options
from tpu_training.compile.programs import read_program
from tpu_training.errors import InputError


def test_stablehlo_text_says_how_many_cores_run_it() -> None:
    program = read_program(str(RECORDED / "step.mlir"))
    assert (program.name, program.format, program.replicas, program.partitions) == (
        "step.mlir",
        "mlir",
        2,
        1,
    )


def test_stablehlo_as_bytecode_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "step.mlirbc"
    file.write_bytes(b"ML\xefR\x0dStableHLO")
    program = read_program(str(file))
    assert (program.hlo, program.replicas) == (file.read_bytes(), 1)


def test_the_text_of_stablehlo_names_its_partitions(tmp_path: Path) -> None:
    file = tmp_path / "step.mlir"
    file.write_text("module @m attributes {mhlo.num_partitions = 8 : i32} {}")
    program = read_program(str(file))
    assert (program.replicas, program.partitions) == (1, 8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"HloModule m\n\nENTRY", "neither MLIR text nor bytecode"),
        (b"ML\xefR\x0d sdy.sharding", "divided among cores, and its bytecode"),
        (b"", "neither MLIR text nor bytecode"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "step"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        read_program(str(file))
    assert str(file) in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--stablehlo=.*none: can't be read \(No such file"):
        read_program(str(tmp_path / "none"))


def test_options_name_replicas_and_their_devices() -> None:
    # As protoc encodes it: device_ordinal -1, num_replicas 2, num_partitions 1, no SPMD, the
    # assignment of devices 0 and 1, no Shardy; then the flags by name.
    ordinal = b"\x08" + b"\xff" * 9 + b"\x01"
    assignment = b"\x08\x02\x10\x01\x1a\x04\x08\x00\x08\x01"
    build = ordinal + b"\x20\x02\x28\x01\x30\x00" + b"\x4a\x0a" + assignment + b"\x98\x01\x00"
    encoded = compile_options(2, 1, False, Path("/d"))
    assert encoded.startswith(b"\x1a" + bytes([len(build)]) + build)
    assert b"\x0a\x0bxla_dump_to\x12\x04\x0a\x02/d" in encoded
    assert b"\x0a\x14xla_dump_hlo_as_text\x12\x02\x10\x01" in encoded


def test_partitions_of_a_replica_have_neighbouring_devices() -> None:
    encoded = compile_options(2, 2, True, Path("/d"))
    # Two computations: the first on devices 0 and 2, the second on 1 and 3.
    assert b"\x1a\x04\x08\x00\x08\x02\x1a\x04\x08\x01\x08\x03" in encoded
