"""End a process whose worker has died, where TensorFlow does not notice.

Mostly TensorFlow raises an error within seconds. Sometimes it waits for an answer that never comes:
killed while functions were being registered on it or variables made, a worker left the client
waiting for ever (tensorflow#38190; seen with TensorFlow 2.19), mostly with the interpreter's lock,
so that none of its threads could run. So a process of its own keeps a connection to each worker.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tpu_training.cluster.endpoint import greet

_LOOK_SECONDS = 1.0
# A new connection shows whether a host still answers that vanished without a word.
_RENEWAL_SECONDS = 30.0
# How long TensorFlow has to raise an error after a worker has died, and after one is silent.
_DEAD_SECONDS, _SILENT_SECONDS = 5.0, 120.0
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
                return f"grpc://{worker} has closed its connections"
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
