"""Read programs of other frameworks from files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tpu_training.compile.result import Program
from tpu_training.errors import InputError

_MLIR_BYTECODE = b"ML\xefR"
_MLIR_TEXT = re.compile(rb"\s*(//|#|module\b|\"builtin\.module\"|func\.func\b|!)")
_COUNT = re.compile(rb"mhlo\.num_(replicas|partitions) = (\d+)")
# What bytecode has of a program that is divided among cores, of JAX' two partitioners.
_DIVIDED = re.compile(rb"sdy\.sharding|mhlo\.sharding|manual_computation")
_PAGE = "see training/docs/compile-frameworks.md"


def read_program(file: str | Path, format: Literal["hlo", "mlir"]) -> Program:
    """Return the program in a file: a serialized HloModuleProto or HloProto, or StableHLO.

    It runs on as many cores as StableHLO's text says, else on one.

    Raises:
        InputError: The file is not readable or something else.
    """
    path = Path(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        flag = "hlo" if format == "hlo" else "stablehlo"
        raise InputError(f"--{flag}={file}: can't be read ({error.strerror or error})") from error
    if format == "hlo":
        return Program(path.name, _module_proto(content, file), "hlo")
    _check_mlir(content, file)
    counts = {name: int(count) for name, count in _COUNT.findall(content)}
    replicas, partitions = (counts.get(name, 1) for name in (b"replicas", b"partitions"))
    return Program(path.name, content, "mlir", replicas, partitions=partitions)


def _check_mlir(content: bytes, file: str | Path) -> None:
    """Refuse what is no MLIR, and bytecode for a number of cores that it says in no clear form."""
    if content.startswith(_MLIR_BYTECODE):
        if _DIVIDED.search(content):
            raise InputError(
                f"--stablehlo={file} is divided among cores, and its bytecode does not say how "
                f"many: write it as text, as by `exported.mlir_module()`; {_PAGE}"
            )
    elif not _MLIR_TEXT.match(content):
        raise InputError(
            f"--stablehlo={file} is neither MLIR's text nor its bytecode; {_PAGE}"
            + (" (HLO is for --hlo)" if _is_hlo(content) else "")
        )


def _module_proto(content: bytes, file: str | Path) -> bytes:
    """Return the HloModuleProto that a file holds, as it is or inside an HloProto.

    XLA's own dumps (xla_dump_hlo_as_proto) are HloProtos. The first field of a module is its
    name, that of an HloProto is the module.
    """
    if content.startswith(_MLIR_BYTECODE) or _MLIR_TEXT.match(content):
        raise InputError(f"--hlo={file} is MLIR: give it as --stablehlo={file}")
    if content.lstrip().startswith(b"HloModule"):
        raise InputError(
            f"--hlo={file} is HLO as text, which the compiler does not read: write the serialized "
            f"HloModuleProto; {_PAGE}"
        )
    if not _is_hlo(content):
        raise InputError(f"--hlo={file} is no serialized HloModuleProto; {_PAGE}")
    first = next((value for number, value in _fields(content) if number == 1), b"")
    return first if _is_hlo(first) else content


def _is_hlo(content: bytes) -> bool:
    """Whether bytes are a protocol buffer with the fields that modules have, or an HloProto."""
    try:
        numbers = {number for number, _ in _fields(content)}
    except (IndexError, ValueError):
        return False
    # name and computations of a module, or hlo_module of an HloProto (xla/service/hlo.proto).
    return {1, 3} <= numbers or numbers == {1}


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of a protocol buffer's fields; of numbers no content.

    Raises:
        ValueError, IndexError: It is none.
    """
    place = 0
    while place < len(content):
        tag, place = _varint(content, place)
        kind, size = tag & 7, {1: 8, 5: 4}.get(tag & 7)
        if kind == 2:
            size, place = _varint(content, place)
        elif kind == 0:
            _, end = _varint(content, place)
            size = end - place
        if size is None or not tag >> 3 or place + size > len(content):
            raise ValueError("no protocol buffer")
        yield tag >> 3, content[place : place + size] if kind == 2 else b""
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """Return a number and the place behind it."""
    value, shift = 0, 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place
