"""A stand-in for a TPU's worker: TensorFlow's gRPC server with two logical CPU devices.

Usage: grpc_worker.py PORT_FILE; the port that was taken is written there.
"""

import os
import socket
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

# Enough to be several: a job's graph is traced for each of them. The demo has a TPU's eight.
DEVICES = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main(port_file: Path) -> None:
    port = free_port()
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": DEVICES},
        inter_op_parallelism_threads=8,
        intra_op_parallelism_threads=1,
    )
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}"]})
    server = tf.distribute.Server(cluster, "worker", 0, protocol="grpc", config=config)
    part = port_file.with_suffix(".part")
    part.write_text(str(port))
    part.replace(port_file)
    server.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
