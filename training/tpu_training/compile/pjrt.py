"""Google's TPU compiler, libtpu, by PJRT's C API, and the process in which it works.

`python -m tpu_training.compile.pjrt FOLDER` reads `request.json` and `program` from FOLDER and
writes `topology.json`, libtpu's dump and `answer.json` into it, so that a crash of the compiler
ends nothing else. Its standard input is a pipe from the process that started it: when that process
ends, this one removes FOLDER and ends, too.
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
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, TypeAlias


def main(folder: Path) -> None:
    """Do what `request.json` asks.

    Each file that is written is an answer in itself: the parent may end this process after any.
    """
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
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


def _end_with_parent(folder: Path) -> None:
    """Wait for the end of standard input, which is the end of the parent; then clean up."""
    while os.read(0, 1024):
        pass
    for _ in range(10):
        # The compiler may be writing another file.
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
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

Fields: TypeAlias = list[tuple[str, Any]]

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
_HEAD: Fields = [("struct_size", c_size_t), ("extension_start", c_void_p)]
# More than PJRT_Executable_GetCompiledMemoryStats_Args has; it refuses fewer, but not more.
_OTHER_STATS = 16
# PJRT_NamedValue_Type
_STRING, _INT64, _FLOAT = 0, 1, 3


class _Value(ctypes.Union):
    _fields_ = (
        ("string_value", c_void_p),
        ("int64_value", c_int64),
        ("float_value", ctypes.c_float),
    )


class _NamedValue(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        ("name", c_char_p),
        ("name_size", c_size_t),
        ("type", c_int),
        ("value", _Value),
        ("value_size", c_size_t),
    )


class _Program(ctypes.Structure):
    _fields_ = (
        *_HEAD,
        ("code", c_char_p),
        ("code_size", c_size_t),
        ("format", c_char_p),
        ("format_size", c_size_t),
    )


class PjrtError(Exception):
    """What the library says went wrong: a status with a text, unlike a crash, which ends us."""


class Compiler:
    """Google's TPU compiler for one topology."""

    def __init__(self, library: Path, topology: str, options: Mapping[str, str]) -> None:
        """Load the library, which takes its settings from the environment."""
        loaded = ctypes.CDLL(str(library))
        loaded.GetPjrtApi.restype = c_void_p
        self._functions = int(loaded.GetPjrtApi()) + _FIRST_FUNCTION
        self._call("Plugin_Initialize", [])
        names = [(name.encode(), value.encode()) for name, value in options.items()]
        values = (_NamedValue * len(names))(*(_string_value(*pair) for pair in names))
        text = topology.encode()
        made = self._call(
            "TopologyDescription_Create",
            [
                ("topology_name", c_char_p),
                ("topology_name_size", c_size_t),
                ("create_options", c_void_p),
                ("num_options", c_size_t),
                ("topology", c_void_p),
            ],
            topology_name=text,
            topology_name_size=len(text),
            create_options=ctypes.addressof(values),
            num_options=len(names),
        )
        self._topology = made.topology

    def device_attributes(self) -> list[dict[str, str | int | float]]:
        """Return the attributes of each device, device_memory_bytes_limit among them."""
        found = self._call(
            "TopologyDescription_GetDeviceDescriptions",
            [("topology", c_void_p), ("descriptions", POINTER(c_void_p)), ("count", c_size_t)],
            topology=self._topology,
        )
        return [self._attributes(found.descriptions[n]) for n in range(found.count)]

    def compile(self, code: bytes, format: str, options: bytes) -> int:
        """Compile a program with a serialized CompileOptionsProto; return the executable."""
        name = format.encode()
        program = _Program(ctypes.sizeof(_Program), None, code, len(code), name, len(name))
        compiled = self._call(
            "Compile",
            [
                ("topology", c_void_p),
                ("program", c_void_p),
                ("compile_options", c_char_p),
                ("compile_options_size", c_size_t),
                ("client", c_void_p),
                ("executable", c_void_p),
            ],
            topology=self._topology,
            program=ctypes.addressof(program),
            compile_options=options,
            compile_options_size=len(options),
        )
        return int(compiled.executable)

    def memory_needed(self, executable: int) -> int:
        """Return the bytes of HBM that a finished program needs, without those of its code."""
        names = ("code", "arguments", "results", "shared", "temporaries")
        # Then come those of the host, five of them, and in later versions others.
        fields: Fields = [("executable", c_void_p), *((name, c_int64) for name in names)]
        found = self._call(
            "Executable_GetCompiledMemoryStats",
            [*fields, ("others", c_int64 * _OTHER_STATS)],
            executable=executable,
        )
        return int(found.arguments + found.results - found.shared + found.temporaries)

    def _attributes(self, device: int) -> dict[str, str | int | float]:
        found = self._call(
            "DeviceDescription_Attributes",
            [
                ("device_description", c_void_p),
                ("num_attributes", c_size_t),
                ("attributes", POINTER(_NamedValue)),
            ],
            device_description=device,
        )
        return _read(found.attributes, found.num_attributes)

    def _call(self, name: str, fields: Fields, **values: Any) -> Any:
        """Call a function with its struct of arguments and return the struct, results included."""
        arguments = _arguments(fields, values)
        if error := self._function(name, c_void_p)(ctypes.addressof(arguments)):
            raise PjrtError(self._message(error))
        return arguments

    def _message(self, error: int) -> str:
        """Return an error's words; the functions of errors return nothing themselves."""
        fields: Fields = [("error", c_void_p), ("message", c_void_p), ("size", c_size_t)]
        found = _arguments(fields, {"error": error})
        self._function("Error_Message", None)(ctypes.addressof(found))
        return ctypes.string_at(found.message, found.size).decode(errors="replace")

    def _function(self, name: str, result: Any) -> Any:
        address = ctypes.c_uint64.from_address(self._functions + 8 * _PLACES[name]).value
        return ctypes.CFUNCTYPE(result, c_void_p)(address)


def _arguments(fields: Fields, values: Mapping[str, Any]) -> Any:
    """Return a function's struct of arguments, which begins with its own size."""
    arguments = type("Arguments", (ctypes.Structure,), {"_fields_": [*_HEAD, *fields]})()
    arguments.struct_size = ctypes.sizeof(arguments)
    for field, value in values.items():
        setattr(arguments, field, value)
    return arguments


def _string_value(name: bytes, value: bytes) -> _NamedValue:
    text = ctypes.cast(c_char_p(value), c_void_p)
    size = ctypes.sizeof(_NamedValue)
    return _NamedValue(size, None, name, len(name), _STRING, _Value(text), len(value))


def _read(values: Any, count: int) -> dict[str, str | int | float]:
    """Return named values; arrays, which nothing here needs, are left out."""
    found: dict[str, str | int | float] = {}
    for number in range(count):
        value = values[number]
        name = ctypes.string_at(value.name, value.name_size).decode()
        if value.type == _STRING:
            found[name] = ctypes.string_at(value.value.string_value, value.value_size).decode()
        elif value.type == _INT64:
            found[name] = value.value.int64_value
        elif value.type == _FLOAT:
            found[name] = value.value.float_value
    return found


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
