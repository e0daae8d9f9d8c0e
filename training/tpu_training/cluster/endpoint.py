"""Which TPU is meant, and whether its gRPC workers answer and keep answering. No TensorFlow.

The first of these that is set counts: `--tpu`, TPU_GRPC_URL (Paperspace), TPU_NAME (Cloud TPU,
Google Kubernetes Engine), TPU_CONFIG (AI Platform: JSON with tpu_node_name, project, zone),
COLAB_TPU_ADDR (Colab), KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS (Google Kubernetes Engine). TensorFlow's
own resolver reads neither TPU_GRPC_URL nor COLAB_TPU_ADDR.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tpu_training.errors import EndpointError, InputError

DEFAULT_PORT = 8470
SCHEME = "grpc://"

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_FULL_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/nodes/([^/]+)")
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?)(:(?P<port>[0-9]{1,5}))?")
# In order of precedence.
_VARIABLES = (
    *("TPU_GRPC_URL", "TPU_NAME", "TPU_CONFIG"),
    *("COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"),
)
_FIRST_PAUSE = 0.5
# RFC 9113, section 3.4: a client starts with this and a SETTINGS frame; the server answers with its
# own SETTINGS. A listener that is not a gRPC server, or is stuck, does not.
_CLIENT_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS_ACKNOWLEDGED = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_SETTINGS_TYPE = 4
_TIMEOUT_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Addresses:
    """The workers' `host:port` in worker order, and the setting that named them.

    `tensorflow` is their version as reported by the Cloud TPU API, if it was asked. `look_up` asks
    it again: a recreated TPU has other addresses.
    """

    addresses: tuple[str, ...]
    source: str
    tensorflow: str | None = None
    look_up: Callable[[], Addresses] | None = field(default=None, compare=False, repr=False)

    @property
    def url(self) -> str:
        """The workers in the form of TensorFlow's resolver: `grpc://A:P,grpc://B:P`."""
        return ",".join(SCHEME + address for address in self.addresses)


@dataclass(frozen=True)
class NamedTpu:
    """A TPU to look up through the Cloud TPU API; project and zone may be unknown yet."""

    name: str
    project: str | None
    zone: str | None
    source: str


@dataclass(frozen=True)
class LocalTpu:
    """The TPU of the machine that this process runs on (a TPU VM), and why it was chosen."""

    source: str
    reason: str


@dataclass(frozen=True)
class NoTpu:
    """No setting names a TPU."""


Workers = Addresses | LocalTpu | NoTpu
"""What a training runs on, once a name is looked up."""
Target = Workers | NamedTpu


def find_target(
    tpu: str | None, project: str | None, zone: str | None, environ: Mapping[str, str]
) -> Target:
    """Return the target that the argument `tpu` or the first set environment variable names.

    Raises:
        InputError: The value is neither a name nor an address; the message names the setting.
    """
    project = project or environ.get("TPU_PROJECT") or None
    zone = zone or environ.get("TPU_ZONE") or None
    for source, value in settings(tpu, environ).items():
        if value and source == "TPU_CONFIG":
            return _parse_tpu_config(value, project, zone)
        if value and source in ("--tpu", "TPU_NAME"):
            return _parse(value, project, zone, source)
        if value:  # The others name no TPU: a word without a dot is a host.
            return Addresses(_parse_addresses(value, source), source)
    return NoTpu()


def settings(tpu: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what can name a TPU, in the order in which it counts; "" where it is not set."""
    return {"--tpu": tpu or "", **{name: environ.get(name, "") for name in _VARIABLES}}


def _parse(value: str, project: str | None, zone: str | None, source: str) -> Target:
    """Distinguish names from addresses, which have a scheme, a dot, a colon or a comma."""
    value = value.strip()
    if value == "local":
        return LocalTpu(source, f"{source} is local")
    if full := _FULL_NAME.fullmatch(value):
        project, zone, value = full.groups()
    if _NAME.fullmatch(value):
        return NamedTpu(value, project, zone, source)
    return Addresses(_parse_addresses(value, source), source)


def _parse_addresses(value: str, source: str) -> tuple[str, ...]:
    addresses = tuple(_parse_address(part.strip(), source) for part in value.split(","))
    if repeated := sorted({address for address in addresses if addresses.count(address) > 1}):
        raise InputError(f"{source}={value!r} names the worker {repeated[0]} more than once")
    return addresses


def _parse_address(value: str, source: str) -> str:
    match = _ADDRESS.fullmatch(value.removeprefix(SCHEME).removesuffix("/"))
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise InputError(
            f"{source}: {value!r} is neither a TPU's name nor an address; expected a name such as "
            f"my-tpu, {SCHEME}HOST:PORT, several of them separated by commas, or local"
        )
    return f"{match['host']}:{port}"


def _parse_tpu_config(value: str, project: str | None, zone: str | None) -> Target:
    try:
        config = dict(json.loads(value))
        name = config["tpu_node_name"].strip()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"TPU_CONFIG={value!r}: expected JSON such as "
            '{"tpu_node_name": NAME, "project": PROJECT, "zone": ZONE}'
        ) from error
    return _parse(name, project or config.get("project"), zone or config.get("zone"), "TPU_CONFIG")


@dataclass(frozen=True)
class Attempt:
    """One try: its number, counted from 1, and the seconds elapsed before it."""

    number: int
    elapsed: float
    deadline: float

    def __str__(self) -> str:
        """Format as `try 3, 2 of 400 s`."""
        return f"try {self.number}, {self.elapsed:.0f} of {self.deadline:.0f} s"


@dataclass(frozen=True)
class Wait:
    """How long to wait: `tries` times `interval` seconds in all; AI Platform advises 40 x 10 s.

    Pauses start short and double up to `interval`, so that a worker that is ready soon is noticed
    soon. Tests replace `clock` and `sleep` to run in virtual time.
    """

    tries: int = 40
    interval: float = 10.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def deadline(self) -> float:
        """The seconds to wait in all."""
        return self.tries * self.interval

    def attempts(self) -> Iterator[Attempt]:
        """Yield attempts until the deadline, with pauses between them."""
        started, pause, number = self.clock(), min(_FIRST_PAUSE, self.interval), 1
        while True:
            elapsed = self.clock() - started
            yield Attempt(number, elapsed, self.deadline)
            left = self.deadline - (self.clock() - started)
            if left <= 0:
                return
            self.sleep(min(pause, left))
            pause, number = min(pause * 2, self.interval), number + 1


def wait_for_workers(workers: Addresses, wait: Wait) -> Addresses:
    """Return the workers once each answers as a gRPC server; log each unsuccessful try.

    `tf.config.experimental_connect_to_cluster` would hang silently (tensorflow#34564). Before each
    further try a named TPU is looked up again: a lost one is still READY for a while, and its
    replacement has other addresses.

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
        f"no gRPC server answers at {_describe(silent)} after {wait.deadline:.0f} s; check that "
        "the TPU is READY, that this machine is in the TPU's network, and that a firewall rule "
        "allows the port; a TPU VM serves gRPC only with a -pod runtime or a worker that was "
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
        OSError: No answer, or it is not a gRPC server.
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


# End a process whose worker has died, where TensorFlow does not notice.
#
# Mostly TensorFlow raises an error within seconds. Sometimes it waits for an answer that never
# comes: killed while functions were being registered on it or variables made, a worker left the
# client waiting forever (tensorflow#38190; seen with TensorFlow 2.19), mostly with the
# interpreter's lock, so that none of its threads could run. So a process of its own, this module
# started as a program, keeps a connection to each worker.

_LOOK_SECONDS = 0.5
# A new connection shows whether a host still answers that vanished without a word.
_RENEWAL_SECONDS = 30.0
# How long TensorFlow has to raise an error after a worker has died, and after one is silent.
_DEAD_SECONDS, _SILENT_SECONDS = 1.5, 120.0
# Then the watched process ends itself, if its threads can run, before it is killed.
_LAST_WORDS_SECONDS = 3.0


@contextlib.contextmanager
def watching(workers: Sequence[str], end: Callable[[str], object]) -> Iterator[None]:
    """Call `end` with the reason once one of the `workers`, each `host:port`, is gone.

    A process that does not end then is killed. An exception leaves the watch on, until the process
    ends: what waits at its exit may hang, too.
    """
    command = [sys.executable, "-m", __name__, *workers]
    pipe = subprocess.PIPE
    # Ctrl-C and SIGTERM are for the watched process, which may save first.
    watch = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    listener = threading.Thread(target=_listen, args=(watch, end), daemon=True)
    listener.start()
    yield
    assert watch.stdin
    watch.stdin.close()
    listener.join()


def _listen(watch: subprocess.Popen[str], end: Callable[[str], object]) -> None:
    assert watch.stdout
    with watch.stdout as output:
        why = output.readline().strip()
    if why:
        end(why)
    watch.wait()


class WorkerWatch:
    """What is known of the workers, each `host:port`."""

    def __init__(self, workers: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._workers, self._clock = workers, clock
        self._connections: dict[str, tuple[socket.socket, float]] = {}
        self._dead: dict[str, float] = {}
        self._silent: dict[str, float] = {}

    def look(self) -> str | None:
        """Return in words which worker has been gone for long enough; None if none has."""
        for worker in self._workers:
            if worker not in self._dead:
                self._look_at(worker)
        now = self._clock()
        for worker, since in self._dead.items():
            if now - since >= _DEAD_SECONDS:
                return f"grpc://{worker} closed its connections"
        for worker, since in self._silent.items():
            if now - since >= _SILENT_SECONDS:
                return f"grpc://{worker} has not answered for {now - since:.0f} s"
        return None

    def _look_at(self, worker: str) -> None:
        now = self._clock()
        connection, opened = self._connections.get(worker, (None, 0.0))
        if connection and _is_closed(connection):
            # A worker that is started again at once does not know the watched process.
            self._dead[worker] = now
        elif not connection or now - opened >= _RENEWAL_SECONDS:
            self._renew(worker, connection)

    def _renew(self, worker: str, old: socket.socket | None) -> None:
        try:
            new = greet(worker)
        except ConnectionRefusedError:
            self._dead[worker] = self._clock()
        except OSError:
            self._silent.setdefault(worker, self._clock())
        else:
            self._connections[worker] = new, self._clock()
            self._silent.pop(worker, None)
            if old:
                old.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def main(workers: Sequence[str]) -> None:
    """Watch until the parent closes standard input, or a worker is gone; say so, and kill it."""
    watch = WorkerWatch(workers)
    while not _is_over(_LOOK_SECONDS):
        if why := watch.look():
            print(why, flush=True)
            if not _is_over(_LAST_WORDS_SECONDS):
                os.kill(os.getppid(), signal.SIGKILL)
            return


def _is_over(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
