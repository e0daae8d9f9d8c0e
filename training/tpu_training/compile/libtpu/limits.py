"""How much of a core's HBM a program may use."""

import re

from tpu_training.compile.libtpu.options import compile_options
from tpu_training.compile.libtpu.pjrt import Compiler, PjrtError

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
    said = compiler.device_attributes()[0].get("device_memory_bytes_limit")
    if said is not None:
        return int(said)
    try:
        compiler.compile(_TOO_LARGE, "mlir", compile_options(1, 1, False))
    except PjrtError as error:
        return limit_in(str(error))
    return None
