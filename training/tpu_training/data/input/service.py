"""tf.data services that prepare the batches: each one a fixed part of every batch.

A service keeps the order of a data set only as long as it has one worker. Several workers of one
dispatcher would each get the files or the epochs that are next, so that what a step gets would
depend on their speed. So each worker has a dispatcher of its own.
"""

import re
from collections.abc import Callable

import tensorflow as tf

from tpu_training.errors import EndpointError, InputError

# number of hosts, number of this host -> its batches
Build = Callable[[int, int], tf.data.Dataset]

_SCHEME = "grpc://"
_ADDRESS = re.compile(_SCHEME + r"[^\s/:]+:\d+")
# https://github.com/tensorflow/tensorflow/blob/v2.19.0/tensorflow/core/data/service/dispatcher.proto
_GET_WORKERS = "/tensorflow.data.DispatcherService/GetWorkers"
_TIMEOUT_SECONDS = 10.0


def in_services(build: Build, addresses: str) -> Build:
    """Let the tf.data services at `addresses`, with commas between, build what `build` does.

    Each makes some rows of every batch, as if it were one of so many more hosts. So their number
    changes neither the order of the examples nor where a job goes on that was started again.

    Raises:
        InputError: An address is none, or a service has several workers.
        EndpointError: Nobody answers there, for which TensorFlow would wait for ever.
    """
    services = addresses.split(",")
    if wrong := [address for address in services if not _ADDRESS.fullmatch(address)]:
        raise InputError(
            f"--data_service={','.join(wrong)}: expected grpc://HOST:PORT, the dispatcher's "
            "address, or several with commas between"
        )

    def built(hosts: int, host: int) -> tf.data.Dataset:
        parts = [
            _served(build(hosts * len(services), host * len(services) + number), address)
            for number, address in enumerate(services)
        ]
        return parts[0] if len(parts) == 1 else tf.data.Dataset.zip(tuple(parts)).map(_join)

    return built


def _join(*parts: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
    return tuple(tf.concat([part[i] for part in parts], axis=0) for i in range(len(parts[0])))


def _served(dataset: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """Let the tf.data service at `address` prepare the elements of `dataset`, in their order."""
    if (workers := _count_workers(address)) > 1:
        raise InputError(
            f"--data_service={address}: has {workers} workers, and the order of the examples is "
            "kept by one only; give each worker a dispatcher of its own and name them all, "
            "--data_service=grpc://HOST:PORT,grpc://HOST:PORT"
        )
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    return dataset.apply(tf.data.experimental.service.distribute(policy, address))


def _count_workers(address: str) -> int:
    import grpc  # type: ignore[import-untyped]  # Only here: no other job has to load it.

    try:
        with grpc.insecure_channel(address.removeprefix(_SCHEME)) as channel:
            answer = channel.unary_unary(_GET_WORKERS)(b"", timeout=_TIMEOUT_SECONDS)
    except grpc.RpcError as error:
        raise EndpointError(
            f"--data_service={address}: no tf.data service answers there ({error.code().name}); "
            "check that its dispatcher runs and that this machine may reach the port"
        ) from error
    # The answer's only field is `repeated WorkerInfo workers = 1`. TensorFlow has no Python class
    # of it, but a message can be read as a field of bytes with the same number:
    # https://protobuf.dev/programming-guides/proto3/#updating
    return len(tf.train.BytesList.FromString(answer).value)
