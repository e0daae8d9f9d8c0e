"""From a target to a distribution strategy: wait for the workers, connect, choose."""

from __future__ import annotations

import inspect
import logging
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import tensorflow as tf

from tpu_training.cluster import endpoint as endpoints

_WORKER_JOB = "/job:worker/"
_FIRST_TASK = "/task:0/"
_WORKER_HOST = "/job:worker/replica:0/task:0/device:CPU:0"

logger = logging.getLogger(__name__)


def _job_of_this_process() -> str:
    """Return the name that TensorFlow gives this process's job in a cluster."""
    connect_to_cluster = inspect.signature(tf.config.experimental_connect_to_cluster)
    return str(connect_to_cluster.parameters["job_name"].default)


@dataclass(frozen=True)
class Cluster:
    """Devices to train on.

    Attributes:
        strategy: Distributes the training over the devices.
        endpoint: The workers' URL; empty without remote workers.
        loop_device: Where the training loop runs: on the worker, so that steps cost no round trip.
            None leaves the placement to the strategy.
        has_tpu: Whether the devices are TPU cores.
        this_process: The device for local work such as writing files. Once connected, TensorFlow
            resolves a plain "CPU:0" to the worker's CPU.
    """

    strategy: tf.distribute.Strategy
    endpoint: str
    loop_device: str | None
    has_tpu: bool
    this_process: str = f"/job:{_job_of_this_process()}/replica:0/task:0/device:CPU:0"

    @property
    def replicas(self) -> int:
        """The number of replicas in sync."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def workers(self) -> list[str]:
        """The `host:port` of each remote worker."""
        return [url.removeprefix(endpoints.SCHEME) for url in self.endpoint.split(",") if url]

    @property
    def strategy_name(self) -> str:
        """The name of the strategy's class."""
        return type(self.strategy).__name__

    @property
    def here(self) -> Cluster:
        """What TensorFlow itself can run on: these devices, but for JAX's."""
        return self

    @property
    def processes(self) -> int:
        """How many like this one train together."""
        return 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the results: of several hosts' processes one does."""
        return True

    def agree(self, *values: float) -> list[float]:
        """Return the largest of each value that any host has; call it while no step runs."""
        return list(values)

    def spread(self, value: float) -> tuple[float, float]:
        """Return the smallest and the largest `value` that any host has; as `agree`."""
        smallest, largest = self.agree(-value, value)
        return -smallest, largest

    def finish(self) -> None:
        """Wait until all hosts have come here, the job's end; after it they don't need another."""

    def fetch(self, *, to_change: bool = False) -> None:
        """Bring the variables of this process up to date, where the devices have their own.

        With `to_change`, what happens to them here reaches the devices before the next step.
        """

    def forget(self) -> None:
        """Drop what an earlier job of this process has left on devices that have their own."""

    def worker_hosts(self) -> list[str]:
        """Return the remote devices that read the data."""
        return _worker_devices("CPU", suffix="CPU:0") if self.endpoint else []

    def on_loop_device(self) -> AbstractContextManager[object]:
        """Return a context that places the loop and its data on `loop_device`."""
        return tf.device(self.loop_device) if self.loop_device else nullcontext()


# Once, until `connect.cache_clear()` as after a worker is lost: to connect again would initialise
# the TPU again, and what an earlier job of this process has made on it would be lost.
@lru_cache(maxsize=1)
def connect(target: endpoints.Workers, wait: endpoints.Wait, local_devices: int) -> Cluster:
    """Wait for `target` and connect to it; log the chosen strategy and the reason in one line."""
    if isinstance(target, endpoints.Addresses):
        _warn_of_other_version(target)
        cluster, reason = _connect_remote(endpoints.wait_for_workers(target, wait))
    elif isinstance(target, endpoints.LocalTpu):
        cluster, reason = _use_local_tpu(), target.reason
    else:
        cluster, reason = _use_this_machine(local_devices)
    logger.info(
        "cluster: %s over %d replicas at %s, because %s",
        cluster.strategy_name,
        cluster.replicas,
        cluster.endpoint or "this machine",
        reason,
    )
    return cluster


def _warn_of_other_version(target: endpoints.Addresses) -> None:
    ours, theirs = tf.__version__, target.tensorflow
    # Patch releases have the same operations.
    if theirs and theirs.split(".")[:2] != ours.split(".")[:2]:
        logger.warning(
            "cluster: this is TensorFlow %s, but the TPU of %s runs %s; some "
            "operations are missing: pip install tensorflow==%s here, or use the TPU runtime %s",
            ours,
            target.source,
            theirs,
            theirs,
            ours,
        )


def _connect_remote(addresses: endpoints.Addresses) -> tuple[Cluster, str]:
    """Join the workers' cluster; use TPUStrategy if they have TPUs, else mirror their devices."""
    resolver = _resolver(addresses.url)
    tf.config.experimental_connect_to_cluster(resolver)
    if _worker_devices("TPU_SYSTEM"):
        return _tpu_cluster_of(resolver, addresses.url), f"{addresses.source} names a TPU"
    kind = "GPU" if _worker_devices("GPU") else "CPU"
    devices = [name for name in _worker_devices(kind) if _FIRST_TASK in name]
    reason = f"the worker of {addresses.source} has no TPU but {len(devices)} {kind} devices"
    if len(addresses.addresses) > 1:
        logger.warning(
            "cluster: only the first of %d workers trains, because TensorFlow can't mirror over "
            "several",
            len(addresses.addresses),
        )
    return Cluster(_mirror(devices, kind), addresses.url, _WORKER_HOST, has_tpu=False), reason


def _mirror(devices: list[str], kind: str) -> tf.distribute.MirroredStrategy:
    """Mirror over `devices`. CPUs share one memory, so one of them sums the gradients."""
    reduction = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


def _worker_devices(kind: str, suffix: str = "") -> list[str]:
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    return [name for name in names if _WORKER_JOB in name and name.endswith(suffix)]


def _resolver(tpu: str) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)


def _use_local_tpu() -> Cluster:
    resolver = _resolver("local")
    tf.config.experimental_connect_to_cluster(resolver)
    return _tpu_cluster_of(resolver, "")


def _tpu_cluster_of(
    resolver: tf.distribute.cluster_resolver.TPUClusterResolver, endpoint: str
) -> Cluster:
    # It clears the TPU: before the first variable, and once, which `connect` sees to.
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return Cluster(tf.distribute.TPUStrategy(resolver), endpoint, None, has_tpu=True)


def _use_this_machine(local_devices: int) -> tuple[Cluster, str]:
    """Mirror over `local_devices` logical CPUs if given, else over the GPUs, else use the CPU."""
    reason = "neither --tpu nor the environment names a TPU"
    if local_devices:
        # Before logical devices are listed: that starts TensorFlow, after which no CPU is split.
        cpu = tf.config.list_physical_devices("CPU")[0]
        split = [tf.config.LogicalDeviceConfiguration()] * local_devices
        tf.config.set_logical_device_configuration(cpu, split)
        reason += f" and --local_devices={local_devices}"
    kind = "GPU" if tf.config.list_physical_devices("GPU") and not local_devices else "CPU"
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    return Cluster(_mirror(devices, kind), "", None, has_tpu=False), reason
