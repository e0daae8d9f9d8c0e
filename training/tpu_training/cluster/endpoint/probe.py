"""Probe whether a gRPC server answers at an address.

`tf.config.experimental_connect_to_cluster` hangs silently if nobody listens (tensorflow#34564), so
every worker is probed first.
"""

import logging
import socket

from tpu_training.cluster.endpoint.target import Addresses
from tpu_training.cluster.endpoint.wait import Wait
from tpu_training.errors import EndpointError

# RFC 9113, section 3.4: a client starts with this and a SETTINGS frame; the server answers with its
# own SETTINGS. A listener that is not a gRPC server, or is stuck, does not.
_CLIENT_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS_ACKNOWLEDGED = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_SETTINGS_TYPE = 4
_TIMEOUT_SECONDS = 5.0

logger = logging.getLogger(__name__)


def wait_for_workers(workers: Addresses, wait: Wait) -> Addresses:
    """Return the workers once each answers as a gRPC server; log each unsuccessful try.

    Before each further try a named TPU is looked up again: one that died is still READY for a
    while, and the one that is made in its place has other addresses.

    Raises:
        EndpointError: At the deadline.
        TpuStateError: The TPU got into a state that waiting does not change.
    """
    silent: dict[str, str] = {}
    for attempt in wait.attempts():
        if silent and workers.look_up:
            workers = workers.look_up()
        silent = {a: reason for a in workers.addresses if (reason := why_silent(a))}
        if not silent:
            return workers
        logger.info("endpoint: waiting for %s (%s)", _describe(silent), attempt)
    raise EndpointError(
        f"no gRPC server answers at {_describe(silent)} after {wait.deadline:.0f} s: check that "
        "the TPU is READY, that this machine is in the TPU's network, and that a firewall rule "
        "lets it reach the port; a TPU VM serves gRPC only with a -pod runtime or a worker "
        "started on it"
    )


def why_silent(address: str, timeout: float = _TIMEOUT_SECONDS) -> str | None:
    """Return None if a gRPC server answers at `host:port`, else the reason in a few words."""
    try:
        greet(address, timeout).close()
    except TimeoutError:
        return f"no answer in {timeout:g} s"
    except OSError as error:
        return error.strerror.lower() if error.strerror else str(error)
    return None


def greet(address: str, timeout: float = _TIMEOUT_SECONDS) -> socket.socket:
    """Return a connection to the gRPC server at `host:port`, which has answered.

    Raises:
        OSError: Nobody answers, or it is not a gRPC server.
    """
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=timeout)
    try:
        connection.sendall(_CLIENT_PREFACE + _EMPTY_SETTINGS)
        header = _read(connection, _FRAME_HEADER_BYTES)
        if len(header) < _FRAME_HEADER_BYTES or header[3] != _SETTINGS_TYPE:
            raise ConnectionError("listens, but is not a gRPC server")
        # A server closes a connection whose client never acknowledges its settings.
        connection.sendall(_SETTINGS_ACKNOWLEDGED)
    except OSError:
        connection.close()
        raise
    return connection


def _read(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes, fewer if the other side closes."""
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def _describe(silent: dict[str, str]) -> str:
    return ", ".join(f"grpc://{address} ({reason})" for address, reason in silent.items())
