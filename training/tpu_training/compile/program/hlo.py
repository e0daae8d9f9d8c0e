"""TensorFlow's own way from a function to HLO, the input of the compiler."""

import inspect
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_STAGE = "hlo_serialized"
# TensorFlow's errors of what it can't compile.
ERRORS = (tf.errors.OpError, ValueError, NotImplementedError)


def hlo_of(function: Any, specs: Sequence[tf.TensorSpec]) -> bytes:
    """Return the serialized HloModuleProto of a tf.function for arguments like `specs`.

    The CPU stands in for the TPU, whose kernels TensorFlow's packages lack; see kernels.py.
    """
    generate = function.experimental_get_compiler_ir(*specs)
    if "platform_name" in inspect.signature(generate).parameters:
        hlo: bytes = generate(stage=_STAGE, platform_name="CPU")
    else:
        hlo = generate(stage=_STAGE, device_name="/device:CPU:0")
    return hlo
