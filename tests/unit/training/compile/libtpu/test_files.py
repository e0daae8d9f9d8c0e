"""Programs of other frameworks, read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.unit.training.compile.libtpu.conftest import RECORDED
from tpu_training.compile.pjrt import compile_options
from tpu_training.compile.programs import read_program
from tpu_training.errors import InputError


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


# An HloModuleProto (xla/service/hlo.proto): name, entry computation's name, a computation, id.
MODULE = field(1, b"step") + field(2, b"main") + field(3, field(1, b"main")) + b"\x28\x05"


def test_stablehlo_text_says_how_many_cores_run_it() -> None:
    program = read_program(RECORDED / "step.mlir", "mlir")
    assert (program.name, program.format, program.replicas, program.partitions) == (
        "step.mlir",
        "mlir",
        2,
        1,
    )


def test_stablehlo_as_bytecode_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "step.mlirbc"
    file.write_bytes(b"ML\xefR\x0dStableHLO")
    program = read_program(file, "mlir")
    assert (program.hlo, program.replicas) == (file.read_bytes(), 1)


def test_the_text_of_stablehlo_names_its_partitions(tmp_path: Path) -> None:
    file = tmp_path / "step.mlir"
    file.write_text("module @m attributes {mhlo.num_partitions = 8 : i32} {}")
    program = read_program(file, "mlir")
    assert (program.replicas, program.partitions) == (1, 8)


def test_a_serialized_module_is_read_directly_or_from_an_xla_dump(tmp_path: Path) -> None:
    plain, dumped = tmp_path / "step.pb", tmp_path / "step.hlo.pb"
    plain.write_bytes(MODULE)
    dumped.write_bytes(field(1, MODULE))
    assert read_program(plain, "hlo").hlo == MODULE
    assert read_program(dumped, "hlo").hlo == MODULE


@pytest.mark.parametrize(
    ("content", "format", "said"),
    [
        (b"module @m {}", "hlo", "is MLIR: give it as --stablehlo="),
        (b"ML\xefR\x0d", "hlo", "is MLIR: give it as --stablehlo="),
        (b"HloModule m\n\nENTRY", "hlo", "HLO as text, which the compiler does not read"),
        (b"import jax\n", "hlo", "no serialized HloModuleProto"),
        (b"", "hlo", "no serialized HloModuleProto"),
        (MODULE[:-3], "hlo", "no serialized HloModuleProto"),
        (MODULE, "mlir", "neither MLIR's text nor its bytecode"),
        (b"ML\xefR\x0d sdy.sharding", "mlir", "divided among cores, and its bytecode"),
        (b"", "mlir", "neither MLIR's text nor its bytecode"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, content: bytes, format: Literal["hlo", "mlir"], said: str
) -> None:
    file = tmp_path / "step"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        read_program(file, format)
    assert str(file) in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--hlo=.*none: can't be read \(No such file"):
        read_program(tmp_path / "none", "hlo")


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
