"""This machine's devices as JAX has them, and the variables of a training in their memory.

TensorFlow builds the model, the step and the input on the CPU; XLA's program of the step runs on
JAX's devices. So a training reaches the TPUs for which TensorFlow has no release. JAX is imported
only by a job that asks for it.
"""

import functools
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster import hosts, machine
from tpu_training.cluster.cluster import Cluster
from tpu_training.errors import InputError

logger = logging.getLogger(__name__)

# The axis of the mesh: a replica each.
AXIS = "replica"
# The releases of training/pyproject.toml: any may change what a step uses (compile/runtime.py).
_FIRST, _TOO_NEW = (0, 6, 2), (0, 12)


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
        for variable in variables:
            if id(variable) not in self._arrays:
                array = put(variable.numpy(), self._placement)
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


def put(values: npt.ArrayLike, placement: Any) -> Any:
    """Return an array of all devices, placed by JAX's sharding; `values` are this host's part."""
    import jax

    return jax.make_array_from_process_local_data(placement, np.asarray(values))


@dataclass(frozen=True, kw_only=True)
class JaxCluster(Cluster):
    """JAX's devices; TensorFlow's strategy is that of this process alone.

    Attributes:
        mesh: All of them along AXIS, host by host.
        memory: What is on them.
        others: The connections to the other hosts, if there are any.
    """

    mesh: Any
    memory: Memory
    others: hosts.Hosts | None = None

    @property
    def processes(self) -> int:
        """The number of hosts, each with a process like this one."""
        return self.others.place.count if self.others else 1

    @property
    def process(self) -> int:
        """Which of them this is."""
        return self.others.place.index if self.others else 0

    @property
    def leads(self) -> bool:
        """Whether this is the first host."""
        return self.process == 0

    def gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the `values` of all hosts, (hosts, …), bit for bit; waits for all of them."""
        if not self.others:
            return values[np.newaxis]
        from jax.experimental import multihost_utils

        found = multihost_utils.process_allgather(np.frombuffer(values.tobytes(), np.uint8))
        return np.frombuffer(found.tobytes(), values.dtype).reshape(self.processes, *values.shape)

    def agree(self, *values: float) -> list[float]:
        """Return the largest of each value that any host has; call it while no step runs."""
        if not self.others:
            return list(values)
        largest: list[float] = self.gather(np.array(values, np.float64)).max(axis=0).tolist()
        return largest

    def finish(self) -> None:
        """Wait until all hosts have come here, the job's end; after it they don't need another."""
        if self.others:
            self.agree(0)
            self.others.finish()

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
def connect_jax(local_devices: int, seconds: float = 0.0) -> JaxCluster:
    """Return this machine's TPU, or `local_devices` devices on its CPU where it has none.

    Where the environment names other hosts, they wait at most so many `seconds` for each other,
    and the devices are those of all.

    Raises:
        InputError: JAX is missing, has no access to the TPU, or belongs to several machines.
        EndpointError: The other hosts did not come.
    """
    machine.leave_tpu_to_jax(os.environ)
    try:
        import jax
    except ImportError as error:
        raise InputError(
            f"--backend=jax: JAX can't be loaded ({error}); install tpu-stack-training[jax], "
            "and on a TPU jax[tpu]"
        ) from error
    if not _FIRST <= jax.__version_info__ < _TOO_NEW:
        raise InputError(
            f"--backend=jax: JAX is {jax.__version__}, which is not supported; install "
            f"'jax>={'.'.join(map(str, _FIRST))},<{'.'.join(map(str, _TOO_NEW))}'"
        )
    # Steps and counts are int64.
    jax.config.update("jax_enable_x64", True)
    _keep_programs(jax)
    if local_devices:
        _split_cpu(jax, local_devices)
    place = hosts.find_place()
    others = _meet(jax, place, seconds) if place else None
    try:
        devices = jax.devices("cpu" if local_devices else None)
    except RuntimeError as error:
        raise InputError(f"--backend=jax: {error}; does another process use the TPU?") from error
    problems = "; ".join(_problems(jax, devices, local_devices, others))
    if problems:
        raise InputError(f"--backend=jax: {problems}")
    # Host by host, since each reads the rows of its own replicas.
    wanted = [each for of_host in _by_host(devices) for each in of_host[: local_devices or None]]
    mesh = jax.sharding.Mesh(np.array(wanted), (AXIS,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    cluster = JaxCluster(
        strategy=tf.distribute.get_strategy(),
        endpoint="",
        loop_device=None,
        has_tpu=devices[0].platform == "tpu",
        this_process="/device:CPU:0",
        mesh=mesh,
        memory=Memory(everywhere),
        others=others,
    )
    logger.info(
        "cluster: JAX %s over %d replicas on %s, because of --backend=jax%s",
        jax.__version__,
        cluster.replicas,
        devices[0].device_kind,
        f"; this is {place}" if place else "",
    )
    return cluster


def _keep_programs(jax: Any) -> None:
    """Let the next start find what this one compiles, unless the user has named a folder."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(machine.cache_folder("jax")))


def _split_cpu(jax: Any, count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        logger.debug("JAX has its devices already")


def _meet(jax: Any, place: hosts.Place, seconds: float) -> hosts.Hosts:
    """Join the other hosts, before JAX looks for devices; once in a process, as JAX does."""
    if others := hosts.met():
        return others
    others = hosts.meet(place, seconds)
    # CPUs have no network of their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # All is given: on machines of Compute Engine, JAX's own search reads names that aren't theirs.
    jax.distributed.initialize(
        place.coordinator, place.count, place.index, cluster_detection_method="deactivate"
    )
    # JAX's preemption service has replaced it in C, and Python would hear of no SIGTERM.
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    return others


def _by_host(devices: Sequence[Any]) -> list[list[Any]]:
    found: dict[int, list[Any]] = {}
    for device in devices:
        found.setdefault(device.process_index, []).append(device)
    return [found[host] for host in sorted(found)]


def _problems(
    jax: Any, devices: Sequence[Any], local_devices: int, others: hosts.Hosts | None
) -> Iterator[str]:
    count, found = others.place.count if others else 1, _by_host(devices)
    if jax.process_count() != count or len(found) != count:
        yield (
            f"{count} hosts were announced, but JAX connects {len(found)}; on a slice, set "
            f"{', '.join(hosts.VARIABLES)} on every host"
        )
    if len(sizes := {len(each) for each in found}) > 1:
        yield f"the hosts have {' and '.join(map(str, sorted(sizes)))} devices; give all the same"
    if machine.find_machine().tpu_chips and devices[0].platform != "tpu" and not local_devices:
        yield "this machine has a TPU, but JAX found none; install jax[tpu], or end what uses it"
    if min(sizes) < local_devices:
        yield (
            f"--local_devices={local_devices}, but JAX has started with {min(sizes)} devices "
            "in this process; use another process"
        )
