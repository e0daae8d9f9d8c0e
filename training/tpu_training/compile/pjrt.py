"""Google's TPU compiler, libtpu, by PJRT's C API, and the process in which it works.

`python -m tpu_training.compile.pjrt FOLDER` reads `request.json` and `program` from FOLDER and
writes `topology.json`, libtpu's dump and `answer.json` into it, so that a crash of the compiler
ends nothing else. Its standard input is a pipe from the process that started it: when that process
ends, this one removes FOLDER and the compiler's lock, and ends, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from ctypes import addressof, c_char_p, c_int64, c_void_p
from pathlib import Path
from typing import Any

# libtpu 0.0.21 makes it whatever ALLOW_MULTIPLE_LIBTPU_LOAD says; it is /tmp, not TMPDIR.
LOCK_FILE = Path("/tmp/libtpu_lockfile")


def main(folder: Path) -> None:
    """Do what `request.json` asks.

    Each file that is written is an answer in itself: the parent may end this process after any.
    """
    locks = () if LOCK_FILE.exists() else (LOCK_FILE,)
    threading.Thread(target=_end_with_parent, args=(folder, *locks), daemon=True).start()
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    _write(folder / "answer.json", _compile(folder, request))


def _compile(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    try:
        compiler = Compiler(Path(request["library"]), request["topology"], request["options"])
    except PjrtError as error:
        return {"topology_error": str(error)}
    devices = len(compiler.device_attributes())
    _write(folder / "topology.json", {"limit_bytes": hbm_limit(compiler)})
    replicas, partitions = request["replicas"], request["partitions"]
    if replicas * partitions > devices:
        return {"too_few_devices": devices}
    options = compile_options(replicas, partitions, request["shardy"], folder / "dump")
    code = (folder / "program").read_bytes()
    try:
        executable = compiler.compile(code, request["format"], options)
    except PjrtError as error:
        return {"error": str(error)}
    return {"needed_bytes": compiler.memory_needed(executable)}


def _write(file: Path, content: dict[str, Any]) -> None:
    """Write at once: the other process reads the file as soon as it exists."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.rename(file)


def _end_with_parent(folder: Path, *locks: Path) -> None:
    """Wait for the end of standard input, which is the end of the parent; then clean up."""
    while os.read(0, 1024):
        pass
    for _ in range(10):
        # The compiler may be writing another file.
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
    for lock in locks:
        with suppress(OSError):
            lock.unlink()
    os._exit(1)


# How much of a core's HBM a program may use:
# "… exceeds available HBM (15.48G)", or by libtpu 0.0.21 "Used 18.91G of 15.48G hbm."
_LIMIT = re.compile(r"available HBM \(([\d.]+)([KMGT])\)|of ([\d.]+)([KMGT]) hbm")
_OUT_OF_MEMORY = re.compile(r"CompileTimeHbmOom|Ran out of memory in memory space hbm")
# It takes 256 GiB, and the compiler no time.
_TOO_LARGE = b"""
module @too_large {
  func.func public @main(%x: tensor<262144x262144xf32>) -> tensor<262144x262144xf32> {
    %y = stablehlo.negate %x : tensor<262144x262144xf32>
    return %y : tensor<262144x262144xf32>
  }
}
"""
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def is_out_of_memory(error: str) -> bool:
    """Whether an error says that a program needs more HBM than there is."""
    return bool(_OUT_OF_MEMORY.search(error))


def limit_in(error: str) -> int | None:
    """Return the limit that an out-of-memory error names, rounded as it is there."""
    match = _LIMIT.search(error)
    if match is None:
        return None
    number, unit = match[1] or match[3], match[2] or match[4]
    return int(float(number) * _UNITS[unit])


def hbm_limit(compiler: Compiler) -> int | None:
    """Return the limit of a topology's devices, or None.

    Where the library does not say it, as 0.0.21, it does in an error: that of a program which
    needs more than any TPU has.
    """
    limit = compiler.device_attributes()[0].get("device_memory_bytes_limit")
    if limit is not None:
        return int(limit)
    try:
        compiler.compile(_TOO_LARGE, "mlir", compile_options(1, 1, False))
    except PjrtError as error:
        return limit_in(str(error))
    return None


# The part of PJRT's C API that compiling takes.
# Source: xla/pjrt/c/pjrt_c_api.h, which TensorFlow's wheel has under include/. Functions are found
# by their place in PJRT_Api, which only ever grows at its end; minor versions 69 (libtpu 0.0.17),
# 75 (0.0.21) and 117 (0.0.52) were tried.

# The places of functions in PJRT_Api.
_PLACES = {
    "Error_Message": 1,
    "Plugin_Initialize": 3,
    "DeviceDescription_Attributes": 25,
    "TopologyDescription_Create": 82,
    "TopologyDescription_GetDeviceDescriptions": 86,
    "Compile": 89,
    "Executable_GetCompiledMemoryStats": 96,
}
# PJRT_Api begins with its size, a pointer, and a version with size, pointer and two numbers.
_FIRST_FUNCTION = 8 + 8 + 8 + 8 + 4 + 4
# Each field of a struct is a word on x86-64, which is all that libtpu is made for: pointers, sizes,
# numbers. All structs begin with their own size and a pointer to extensions.
_WORD, _HEAD = 8, 2
# The words of a PJRT_NamedValue: head, name and its size, type, value and its size.
_NAMED_VALUE = _HEAD + 5
# PJRT_NamedValue_Type, which fills half of its word.
_STRING, _INT64, _TYPE = 0, 1, 0xFFFFFFFF
# More than PJRT_Executable_GetCompiledMemoryStats_Args has behind those that are read (the host's
# five, and others in later versions); it refuses fewer, but not more.
_OTHER_STATS = 16


class PjrtError(Exception):
    """What the library says went wrong: a status with a text, unlike a crash, which ends us."""


class Compiler:
    """Google's TPU compiler for one topology."""

    def __init__(self, library: Path, topology: str, options: Mapping[str, str]) -> None:
        """Load the library, which takes its settings from the environment."""
        loaded = ctypes.CDLL(str(library))
        loaded.GetPjrtApi.restype = c_void_p
        self._functions = int(loaded.GetPjrtApi()) + _FIRST_FUNCTION
        self._call("Plugin_Initialize")
        name, texts = topology.encode(), [(n.encode(), v.encode()) for n, v in options.items()]
        values = [_struct(*_bytes(n), _STRING, *_bytes(value)) for n, value in texts]
        listed = (c_int64 * (_NAMED_VALUE * len(values)))(*(word for one in values for word in one))
        (self._topology,) = self._call(
            "TopologyDescription_Create", *_bytes(name), addressof(listed), len(values), results=1
        )

    def device_attributes(self) -> list[dict[str, int]]:
        """Return the whole numbers that each device has, device_memory_bytes_limit among them."""
        name = "TopologyDescription_GetDeviceDescriptions"
        devices, count = self._call(name, self._topology, results=2)
        return [self._attributes(one) for one in (c_int64 * count).from_address(devices)]

    def compile(self, code: bytes, format: str, options: bytes) -> int:
        """Compile a program with a serialized CompileOptionsProto; return the executable."""
        name = format.encode()
        program = _struct(*_bytes(code), *_bytes(name))
        no_client = 0
        call = (self._topology, addressof(program), *_bytes(options), no_client)
        (executable,) = self._call("Compile", *call, results=1)
        return executable

    def memory_needed(self, executable: int) -> int:
        """Return the bytes of HBM that a finished program needs, without those of its code."""
        name = "Executable_GetCompiledMemoryStats"
        found = self._call(name, executable, results=5 + _OTHER_STATS)
        _code, arguments, results, shared, temporaries = found[:5]
        return arguments + results - shared + temporaries

    def _attributes(self, device: int) -> dict[str, int]:
        count, values = self._call("DeviceDescription_Attributes", device, results=2)
        found = {}
        for number in range(count):
            words = (c_int64 * _NAMED_VALUE).from_address(values + _WORD * _NAMED_VALUE * number)
            name, size, kind, value = words[_HEAD : _HEAD + 4]
            if kind & _TYPE == _INT64:
                found[ctypes.string_at(name, size).decode()] = value
        return found

    def _call(self, name: str, *inputs: int, results: int = 0) -> list[int]:
        """Call a function with its struct of arguments; return the words behind its inputs."""
        words = _struct(*inputs, *[0] * results)
        place = self._functions + _WORD * _PLACES[name]
        function = ctypes.CFUNCTYPE(c_void_p, c_void_p)(c_int64.from_address(place).value)
        error = function(addressof(words))
        # The function for an error's words is the one that returns nothing, so nothing to look at.
        if error and name != "Error_Message":
            message, size = self._call("Error_Message", error, results=2)
            raise PjrtError(ctypes.string_at(message, size).decode(errors="replace"))
        return list(words[_HEAD + len(inputs) :])


def _struct(*fields: int) -> Any:
    size = _HEAD + len(fields)
    return (c_int64 * size)(_WORD * size, 0, *fields)


def _bytes(text: bytes) -> tuple[int, int]:
    """Return the address of `text`, which must outlive its use, and its length."""
    return ctypes.cast(c_char_p(text), c_void_p).value or 0, len(text)


# Settings of a compilation: libtpu's environment, and a CompileOptionsProto. Sources: field numbers
# from xla/pjrt/compile_options.proto (TensorFlow's wheel has its header) and from xla_data.proto's
# DeviceAssignmentProto; the environment by trial with libtpu 0.0.52 and 0.0.21.


def environment(accelerator_type: str) -> dict[str, str]:
    """Return what libtpu reads, so that it asks no machine and writes no log."""
    return {
        # Else it asks a metadata server that may not exist, for minutes.
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": accelerator_type,
        # Any name: no host is contacted.
        "TPU_WORKER_HOSTNAMES": "tpu",
        # Else a second process fails at the lock file of the first.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # 0, which programs have that drive a TPU elsewhere, would keep libtpu from loading.
        "TPU_LOAD_LIBRARY": "1",
        "TPU_LOG_DIR": "disabled",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_MIN_LOG_LEVEL": "3",
    }


def compile_options(
    replicas: int, partitions: int, shardy: bool, dump: Path | None = None
) -> bytes:
    """Return a serialized CompileOptionsProto; the compiler says to `dump` what it does."""
    build = (
        _field(1, -1)  # Any device.
        + _field(4, replicas)
        + _field(5, partitions)
        + _field(6, partitions > 1)
        + _field(9, _device_assignment(replicas, partitions))
        + _field(19, shardy)
    )
    options = _field(3, build)
    if dump:
        # The map of XLA's flags; libtpu refuses one that it does not know.
        options += _flag("xla_dump_to", _field(1, str(dump).encode()))
        options += _flag("xla_dump_hlo_as_text", _field(2, True))
    return options


def _flag(name: str, value: bytes) -> bytes:
    return _field(7, _field(1, name.encode()) + _field(2, value))


def _device_assignment(replicas: int, partitions: int) -> bytes:
    """Give the devices to replicas in turn: all partitions of the first, then the next's."""
    devices = b"".join(
        _field(3, b"".join(_field(1, replica * partitions + part) for replica in range(replicas)))
        for part in range(partitions)
    )
    return _field(1, replicas) + _field(2, partitions) + devices


def _field(number: int, value: int | bytes) -> bytes:
    """Return a field of a protocol buffer: a varint, or bytes with their length."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    # libtpu's own threads need not end in order.
    sys.stdout.flush()
    os._exit(0)
