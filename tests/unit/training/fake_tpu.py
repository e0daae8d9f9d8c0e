"""TPUs that exist by name only: enough to trace the program that a real one would run.

TPUStrategy asks its resolver for the cores. Variables that can't be placed there land on this
machine's CPU (soft placement); what is traced is what TensorFlow would give to the TPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

from tpu_training.cluster.cluster import Cluster


class FakeResolver:
    """Knows `hosts` hosts with `cores` cores in all."""

    def __init__(self, cores: int, hosts: int) -> None:
        self._cores, self._hosts = cores, hosts

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        each = self._cores // self._hosts
        devices = [
            tf.config.LogicalDevice(
                f"/job:localhost/replica:0/task:{core // each}/device:TPU:{core % each}", "TPU"
            )
            for core in range(self._cores)
        ]
        return TPUSystemMetadata(
            num_cores=self._cores,
            num_hosts=self._hosts,
            num_of_cores_per_host=each,
            topology=None,
            devices=devices,
        )


def fake_tpu(cores: int = 8, hosts: int = 1) -> Cluster:
    tf.config.set_soft_device_placement(True)
    return Cluster(tf.distribute.TPUStrategy(FakeResolver(cores, hosts)), "", None, has_tpu=True)


def bodies_of_loops(graph: tf.Graph) -> list[tf.Graph]:
    """The graphs of the bodies of all loops that the host runs in `graph`."""
    loops = [op for op in graph.get_operations() if "While" in op.type and not on_tpu(op)]
    found = [graph._get_function(loop.get_attr("body").name).graph for loop in loops]
    return found + [inner for body in found for inner in bodies_of_loops(body)]


def on_tpu(operation: tf.Operation) -> bool:
    """Whether `operation` belongs to the program of the TPU's cores."""
    return "_tpu_replicate" in operation.node_def.attr


def bytes_that_leave(graph: tf.Graph) -> int:
    """The bytes that `graph` brings from the cores to the host: results, and variables read."""
    leaving = [
        tensor
        for operation in graph.get_operations()
        if operation.type == "TPUReplicatedOutput"
        for tensor in operation.outputs
    ]
    leaving += list(_read_by_the_host(graph))
    return sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in leaving)


def _read_by_the_host(graph: tf.Graph) -> Iterator[tf.Tensor]:
    for operation in graph.get_operations():
        if operation.type == "ReadVariableOp" and not on_tpu(operation):
            yield operation.outputs[0]
