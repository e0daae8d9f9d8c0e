"""Which operations XLA can compile.

TensorFlow's packages have no kernels for TPUs: those come with the TPU's own library. The kernels
for XLA on CPUs stand in for them; both are generated from the same source,
tensorflow/compiler/tf2xla/kernels. The few that a TPU refuses are listed in unsupported.py.
"""

import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels

_DEVICE = "XLA_CPU_JIT"


@functools.cache
def _kernels(operation_type: str) -> tuple[Any, ...]:
    registered = kernels.get_registered_kernels_for_op(operation_type).kernel
    return tuple(kernel for kernel in registered if kernel.device_type == _DEVICE)


def has_kernel(operation_type: str) -> bool:
    """Return whether XLA can compile operations of this type, for some type of numbers."""
    return bool(_kernels(operation_type))


def accepts(operation: tf.Operation) -> bool:
    """Return whether XLA can compile this operation with its types of numbers."""
    return any(_fits(kernel, operation) for kernel in _kernels(operation.type))


def _fits(kernel: Any, operation: tf.Operation) -> bool:
    attributes = operation.node_def.attr
    return all(
        attributes[constraint.name].type in constraint.allowed_values.list.type
        for constraint in kernel.constraint
        if constraint.allowed_values.list.type and attributes[constraint.name].type
    )
