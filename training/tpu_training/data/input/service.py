"""A tf.data service that prepares the batches, with one worker."""

import re

import tensorflow as tf

from tpu_training.errors import EndpointError, InputError

_ADDRESS = re.compile(r"grpc://([^\s/:]+:\d+)")
# https://github.com/tensorflow/tensorflow/blob/v2.19.0/tensorflow/core/data/service/dispatcher.proto
_GET_WORKERS = "/tensorflow.data.DispatcherService/GetWorkers"
_TIMEOUT_SECONDS = 10.0


def served(dataset: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """Let the tf.data service at `address` prepare the elements of `dataset`, in their order.

    Raises InputError when it has several workers: each would get a part of the files and of the
    epochs, so that examples would come more often than others. EndpointError when nobody answers,
    as TensorFlow would wait for ever.
    """
    match = _ADDRESS.fullmatch(address)
    if not match:
        raise InputError(
            f"--data_service={address}: expected grpc://HOST:PORT, the dispatcher's address"
        )
    if (workers := _count_workers(match[1], address)) > 1:
        raise InputError(
            f"--data_service={address}: has {workers} workers, and the order of the examples is "
            "kept by one only; start it with one worker, on a larger machine"
        )
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    return dataset.apply(tf.data.experimental.service.distribute(policy, address))


def _count_workers(target: str, address: str) -> int:
    import grpc  # type: ignore[import-untyped]  # Only here: no other job has to load it.

    try:
        with grpc.insecure_channel(target) as channel:
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
