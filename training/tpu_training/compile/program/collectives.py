"""The sum over all replicas of a program that is traced on one device.

A TPU's own operation, CrossReplicaSum, has a kernel on TPUs only. The collectives that any
TensorFlow has become the same all-reduce in HLO.
"""

import functools

import tensorflow as tf

from tpu_training.compile.program.hlo import ERRORS, hlo_of
from tpu_training.loop.step import Tensors


@functools.cache
def can_reduce() -> bool:
    """Return whether this TensorFlow can compile a sum over replicas.

    2.12 says: "CollectiveAssignGroupV2 is unsupported in the legacy TF2XLA bridge".
    """
    number, value = (tf.TensorSpec((), dtype) for dtype in (tf.int32, tf.float32))
    trial = tf.function(lambda number, value: sum_over(2, number, [value]), jit_compile=True)
    try:
        hlo_of(trial, (number, value))
    except ERRORS:
        return False
    return True


def sum_over(replicas: int, number: tf.Tensor, values: Tensors) -> Tensors:
    """Sum each of `values` over `replicas` replicas, of which this one is `number`."""
    if replicas == 1:
        return values
    group = tf.raw_ops.CollectiveAssignGroupV2(
        group_assignment=[list(range(replicas))], device_index=number, base_key=1
    )
    return [
        tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=group.group_size,
            group_key=group.group_key,
            instance_key=instance,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
        for instance, value in enumerate(values)
    ]
