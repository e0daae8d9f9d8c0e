"""The part of PJRT's C API that compiling takes, by ctypes.

Source: xla/pjrt/c/pjrt_c_api.h, which TensorFlow's wheel has under include/. Functions are found
by their place in PJRT_Api, which only ever grows at its end; minor versions 69 (libtpu 0.0.17), 75
(0.0.21) and 117 (0.0.52) were tried.
"""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, TypeAlias

Fields: TypeAlias = list[tuple[str, Any]]

# The places of functions in PJRT_Api.
_PLACES = {
    "Error_Message": 1,
    "Plugin_Initialize": 3,
    "DeviceDescription_Attributes": 25,
    "Executable_GetCostAnalysis": 46,
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
    """What the library says went wrong."""


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

    def cost_analysis(self, executable: int) -> dict[str, str | int | float]:
        """Return XLA's cost analysis: flops, "bytes accessed", optimal_seconds and more."""
        found = self._call(
            "Executable_GetCostAnalysis",
            [
                ("executable", c_void_p),
                ("num_properties", c_size_t),
                ("properties", POINTER(_NamedValue)),
            ],
            executable=executable,
        )
        return _read(found.properties, found.num_properties)

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
