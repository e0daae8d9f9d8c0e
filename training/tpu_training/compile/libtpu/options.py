"""Settings of a compilation: libtpu's environment, and a CompileOptionsProto.

Sources: field numbers from xla/pjrt/compile_options.proto (TensorFlow's wheel has the header made
of it) and xla_data.proto's DeviceAssignmentProto; the environment by trial with libtpu 0.0.52 and
0.0.21.
"""

from collections.abc import Mapping
from pathlib import Path


def environment(accelerator_type: str) -> dict[str, str]:
    """Return what libtpu reads, so that it asks no machine and writes no log."""
    return {
        # Else it asks a metadata server that may not exist, for minutes.
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": accelerator_type,
        # Any name: nobody is called.
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
    build = b"".join(
        (
            _field(1, -1),
            _field(4, replicas),
            _field(5, partitions),
            _field(6, partitions > 1),
            _field(9, _device_assignment(replicas, partitions)),
            _field(19, shardy),
        )
    )
    flags: dict[str, str | bool] = {}
    if dump:
        flags = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
    return _field(3, build) + _flags(flags)


def _device_assignment(replicas: int, partitions: int) -> bytes:
    """Give the devices to replicas in turn: all partitions of the first, then the next's."""
    devices = b"".join(
        _field(3, b"".join(_field(1, replica * partitions + part) for replica in range(replicas)))
        for part in range(partitions)
    )
    return _field(1, replicas) + _field(2, partitions) + devices


def _flags(flags: Mapping[str, str | bool]) -> bytes:
    """Return the map of XLA's flags; libtpu refuses one that it does not know."""
    return b"".join(
        _field(7, _field(1, name.encode()) + _field(2, _value(value)))
        for name, value in flags.items()
    )


def _value(value: str | bool) -> bytes:
    return _field(2, value) if isinstance(value, bool) else _field(1, value.encode())


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
