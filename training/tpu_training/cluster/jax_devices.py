"""This machine's devices as JAX has them, and the variables of a training in their memory.

TensorFlow builds the model, the step and the input on the CPU; XLA's program of the step runs on
JAX's devices. So a training reaches the TPUs for which TensorFlow has no release. JAX is imported
only by a job that asks for it.
"""

import functools
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.cluster import machine
from tpu_training.cluster.cluster import Cluster
from tpu_training.errors import InputError

logger = logging.getLogger(__name__)

# The axis of the mesh: a replica each.
AXIS = "replica"


class Memory:
    """The variables that are on the devices, each with a copy on all of them.

    TensorFlow's variable in this process is older, until `fetch`.

    Attributes:
        in_use: Held by a loop of steps, each of which consumes the arrays of the one before: what
            a callback asks for waits.
    """

    def __init__(self, placement: Any) -> None:
        """Put variables where JAX's sharding `placement` wants them."""
        self._placement = placement
        self._arrays: dict[int, tuple[tf.Variable, Any]] = {}
        self._newer: set[int] = set()
        self.in_use = threading.RLock()

    def of(self, variables: Sequence[tf.Variable]) -> list[Any]:
        """Return the arrays of `variables`; copy those that are missing to the devices."""
        import jax

        for variable in variables:
            if id(variable) not in self._arrays:
                array = jax.device_put(variable.numpy(), self._placement)
                self._arrays[id(variable)] = variable, array
        return [self._arrays[id(variable)][1] for variable in variables]

    def changed(self, variables: Sequence[tf.Variable], arrays: Sequence[Any]) -> None:
        """Keep what a step has made of `variables`."""
        for variable, array in zip(variables, arrays, strict=True):
            self._arrays[id(variable)] = variable, array
            self._newer.add(id(variable))

    def fetch(self) -> None:
        """Bring TensorFlow's variables up to date."""
        for key in self._newer:
            variable, array = self._arrays[key]
            variable.assign(np.asarray(array.addressable_data(0)))
        self._newer.clear()

    def forget(self) -> None:
        """Take the variables from this process again before the next step."""
        self._arrays.clear()
        self._newer.clear()


@dataclass(frozen=True, kw_only=True)
class JaxCluster(Cluster):
    """JAX's devices; TensorFlow's strategy is that of this process alone.

    Attributes:
        mesh: All of them along AXIS.
        memory: What is on them.
    """

    mesh: Any
    memory: Memory

    @property
    def replicas(self) -> int:
        """The number of devices."""
        return int(self.mesh.size)

    @property
    def strategy_name(self) -> str:
        """What distributes the training."""
        return "JAX"

    @property
    def here(self) -> Cluster:
        """What TensorFlow runs on itself: this machine's CPU."""
        return Cluster(self.strategy, "", None, has_tpu=False, this_process=self.this_process)

    def fetch(self, *, to_change: bool = False) -> None:
        """Bring the variables of this process up to date."""
        with self.memory.in_use:
            self.memory.fetch()
            if to_change:
                self.memory.forget()

    def forget(self) -> None:
        """Drop what an earlier job has left on the devices."""
        self.memory.forget()

    def sharding(self, *axes: str | None) -> Any:
        """Return JAX's sharding of an array whose axes lie along these of the mesh."""
        import jax

        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))


@functools.lru_cache(maxsize=1)
def connect_jax(local_devices: int) -> JaxCluster:
    """Return this machine's TPU, or `local_devices` devices on its CPU where it has none.

    Raises:
        InputError: JAX is missing, has no access to the TPU, or belongs to several machines.
    """
    machine.leave_tpu_to_jax(os.environ)
    try:
        import jax
    except ImportError as error:
        raise InputError(
            f"--backend=jax: JAX can't be loaded ({error}); install tpu-stack-training[jax], "
            "and on a TPU jax[tpu]"
        ) from error
    if not hasattr(jax, "shard_map"):
        raise InputError(f"--backend=jax: JAX is {jax.__version__}; install 0.6.2 or later")
    # Steps and counts are int64.
    jax.config.update("jax_enable_x64", True)
    if local_devices:
        _split_cpu(jax, local_devices)
    try:
        devices = jax.local_devices(backend="cpu" if local_devices else None)
    except RuntimeError as error:
        raise InputError(f"--backend=jax: {error}; does another process use the TPU?") from error
    problems = "; ".join(_problems(jax, devices, local_devices))
    if problems:
        raise InputError(f"--backend=jax: {problems}")
    mesh = jax.sharding.Mesh(np.array(devices[: local_devices or None]), (AXIS,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    cluster = JaxCluster(
        strategy=tf.distribute.get_strategy(),
        endpoint="",
        loop_device=None,
        has_tpu=devices[0].platform == "tpu",
        this_process="/device:CPU:0",
        mesh=mesh,
        memory=Memory(everywhere),
    )
    logger.info(
        "cluster: JAX %s over %d replicas on %s, because of --backend=jax",
        jax.__version__,
        cluster.replicas,
        devices[0].device_kind,
    )
    return cluster


def _split_cpu(jax: Any, count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        logger.debug("JAX has its devices already")


def _problems(jax: Any, devices: Sequence[Any], local_devices: int) -> Iterator[str]:
    if jax.process_count() > 1:
        yield f"runs on one machine, but JAX connects {jax.process_count()}; use a smaller TPU"
    if machine.find_machine().tpu_chips and devices[0].platform != "tpu" and not local_devices:
        yield "this machine has a TPU, but JAX found none; install jax[tpu], or end what uses it"
    if len(devices) < local_devices:
        yield (
            f"--local_devices={local_devices}, but JAX has started with {len(devices)} devices "
            "in this process; use another process"
        )
