"""The hosts of a slice that train together with JAX, one process on each: they meet, they part.

JAX's own service aborts a process when the others don't come or when one of them ends, without a
word that helps, and at the exit it waits for all. So the processes meet at the coordinator's
address before JAX uses it, and keep these connections. Who ends gives a reason. Who gives none is
missed as soon as its machine closes the connection, or is silent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from tpu_core.contract import LOST_HOST
from tpu_training.errors import EXIT_FAILURE, EndpointError, InputError, TrainingError

# The agent sets them on each host (agent/tpu_agent/jobs/environment.py).
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# JAX reads it, too.
_BIND = "JAX_COORDINATOR_BIND_ADDRESS"
_GREETING = "tpu-training-host"
_GO, _SORRY, _DONE, _FAILED, _LOST = "go", "sorry", "done", "failed", "lost"
_LONGEST = 4096
_RETRY_SECONDS = 0.5
# A host that vanished without a word is missed after half a minute.
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 10, 5, 4
# After another host's end, what is computing mostly fails, or waits for ever.
_GRACE_SECONDS, _LEADERS_GRACE_SECONDS = 3.0, 10.0
# An error of JAX's may be older than the news of the host that caused it.
_NEWS_SECONDS = 3.0
_WITHOUT_A_WORD = "ended without a word: it was preempted or killed, or ran out of memory"

End = Callable[[str, int], None]
"""Ends this process with a message and an exit code."""


class LostHostError(TrainingError):
    """Another host has ended, without which this one can't go on."""

    cause = LOST_HOST


@dataclass(frozen=True)
class Place:
    """This process is number `index` of `count`; `coordinator` is HOST:PORT of number 0."""

    coordinator: str
    count: int
    index: int

    def __str__(self) -> str:
        return f"host {self.index} of {self.count}"


def find_place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Return the place of this process among several; None where it is alone.

    Raises:
        InputError: Some of VARIABLES are missing or wrong.
    """
    values = {name: environ.get(name, "").strip() for name in VARIABLES}
    coordinator, number, position = values.values()
    if not (number or position):
        # A coordinator alone is JAX's to find the others with, as on a TPU VM.
        return None
    if missing := [name for name, value in values.items() if not value]:
        raise InputError(
            f"--backend=jax: {', '.join(missing)} is not set, but the others of "
            f"{', '.join(VARIABLES)} are; set all three on every host, or none"
        )
    if not (number.isdecimal() and position.isdecimal() and int(position) < int(number)):
        raise InputError(
            f"--backend=jax: JAX_NUM_PROCESSES={number}, JAX_PROCESS_ID={position}: expected the "
            "number of hosts, and which of them this is, from 0"
        )
    for name, value in ((VARIABLES[0], coordinator), (_BIND, environ.get(_BIND, coordinator))):
        host, _, port = value.rpartition(":")
        if not ((host or name == _BIND) and port.isdecimal() and int(port) < 1 << 16):
            raise InputError(
                f"--backend=jax: {name}={value}: expected HOST:PORT of the host whose "
                "JAX_PROCESS_ID is 0"
            )
    return Place(coordinator, int(number), int(position)) if int(number) > 1 else None


def refuse_on_others(what: str) -> None:
    """Raise InputError for what one host does for all, on another one than the first."""
    place = None
    with contextlib.suppress(InputError):
        place = find_place()
    if place and place.index:
        raise InputError(
            f"{what}: this is {place} (JAX_PROCESS_ID={place.index}), and all would write the "
            "same; run it on host 0 alone, or on a machine without JAX_PROCESS_ID"
        )


class Hosts:
    """The connections between host 0 and each of the others."""

    def __init__(self, place: Place, links: MutableMapping[int, socket.socket]) -> None:
        """Watch `links`, by the number of the host at the other end."""
        self.place = place
        self._links = links
        self._jobs = self._done = 0
        # By host, how many jobs it has finished.
        self._finished = dict.fromkeys(links, 0)
        self._gone: set[int] = set()
        self._lost, self._known = "", threading.Event()
        self._failed = threading.Event()
        self._end: End | None = None
        self._exit_code = EXIT_FAILURE
        threading.Thread(target=self._listen, name="hosts", daemon=True).start()
        # JAX's own, registered before, would wait for hosts that are gone.
        atexit.register(self._exit)

    def begin(self, end: End) -> None:
        """Begin a job; call `end` when another host is lost and this process still waits for it.

        Raises:
            LostHostError: One has left since the last job.
        """
        self._jobs, self._end = self._jobs + 1, end
        for index in [*self._gone]:
            self._lose(f"host {index} {_WITHOUT_A_WORD}")
        if self._lost:
            raise LostHostError(self._lost)

    def finish(self) -> None:
        """Tell the others that this host has finished the job, after all have agreed on that."""
        self._done, self._end = self._jobs, None
        self._tell(f"{_DONE} {self._jobs}")

    def fail(self, error: BaseException) -> None:
        """Tell the others that this host ends with `error`.

        Raises:
            LostHostError: It ends because another one has.
        """
        if self._done == self._jobs:
            return
        own = isinstance(error, TrainingError) or not isinstance(error, Exception)
        if not own:
            self._known.wait(_NEWS_SECONDS)
        lost = self._lost
        self._exit_code = getattr(error, "exit_code", EXIT_FAILURE)
        self._failed.set()
        if own or not lost:
            self._tell(f"{_FAILED} {_one_line(error)}")
        give_up = time.monotonic() + _GRACE_SECONDS + 1
        # With host 0 JAX's service ends, which would kill the others before their last words.
        while not self.place.index and len(self._gone) < len(self._links):
            if time.monotonic() > give_up:
                break
            time.sleep(0.05)
        if lost and not own:
            raise LostHostError(lost) from error

    def _tell(self, line: str) -> None:
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):
                link.sendall(f"{line}\n".encode())

    def _listen(self) -> None:
        heard = dict.fromkeys(self._links, b"")
        while left := {self._links[i].fileno(): i for i in self._links if i not in self._gone}:
            for number in select.select(list(left), [], [])[0]:
                index = left[number]
                data = _receive(self._links[index])
                *lines, heard[index] = (heard[index] + data).split(b"\n")
                for line in lines:
                    self._hear(index, line.decode(errors="replace"))
                if not data or len(heard[index]) > _LONGEST:
                    self._gone.add(index)
                    if self._finished[index] < self._jobs:
                        self._lose(f"host {index} {_WITHOUT_A_WORD}")

    def _hear(self, index: int, line: str) -> None:
        word, _, text = line.partition(" ")
        if word == _DONE and text.isdecimal():
            self._finished[index] = int(text)
        elif word == _FAILED:
            self._lose(f"host {index} failed: {text}")
        elif word == _LOST:
            self._lose(text)

    def _lose(self, why: str) -> None:
        if self._lost:
            return
        self._lost = (
            f"{why} (see its log); all {self.place.count} hosts have to start again, and resume "
            "from the last checkpoint"
        )
        self._known.set()
        if self.place.index == 0:
            self._tell(f"{_LOST} {why}")
        threading.Thread(target=self._give_up, name="lost-host", daemon=True).start()

    def _give_up(self) -> None:
        grace = _GRACE_SECONDS if self.place.index else _LEADERS_GRACE_SECONDS
        self._failed.wait(grace)
        if self._end is not None and not self._failed.is_set():
            self._end(f"training failed: {self._lost}", EXIT_FAILURE)

    def _exit(self) -> None:
        """End a process that has failed without waiting for the others, as JAX would."""
        if self._done != self._jobs:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._exit_code)


_met: Hosts | None = None
_ending: End | None = None


@contextmanager
def watching(end: End) -> Iterator[None]:
    """Tell the others when the block fails; call `end` when another host is lost.

    The hosts may `meet` before the block or in it; without others nothing happens.

    Raises:
        LostHostError: The block failed because another host is lost.
    """
    global _ending
    _ending = end
    try:
        if _met:
            _met.begin(end)
        yield
    except BaseException as error:
        if _met:
            _met.fail(error)
        raise


def met() -> Hosts | None:
    """Return the connections that this process has, from an earlier job, too."""
    return _met


def meet(place: Place, seconds: float) -> Hosts:
    """Wait for all hosts, for at most so many `seconds`, and return the connections to them.

    Raises:
        EndpointError: Not all of them came.
    """
    global _met
    deadline = time.monotonic() + seconds
    links = _join(place, deadline, seconds) if place.index else _gather(place, deadline, seconds)
    for link in links.values():
        _keep_alive(link)
    _met = Hosts(place, links)
    _met.begin(_ending or _no_end)
    return _met


def _no_end(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    os._exit(code)


def _gather(place: Place, deadline: float, seconds: float) -> dict[int, socket.socket]:
    """Wait for the others, as host 0."""
    here: dict[int, socket.socket] = {}
    greeting: dict[socket.socket, bytes] = {}
    with _bound(place) as door:
        while len(here) < place.count - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                _turn_away(place, here, seconds)
            for ready in select.select([door, *greeting, *here.values()], [], [], left)[0]:
                if ready is door:
                    guest, _ = door.accept()
                    greeting[guest] = b""
                elif ready in greeting:
                    _greet(place, ready, greeting, here)
                else:
                    # It has ended, and may come again.
                    here = {i: each for i, each in here.items() if each is not ready}
                    ready.close()
    for stranger in greeting:
        stranger.close()
    for link in here.values():
        with contextlib.suppress(OSError):
            link.sendall(f"{_GO}\n".encode())
    return here


def _greet(
    place: Place,
    guest: socket.socket,
    greeting: dict[socket.socket, bytes],
    here: dict[int, socket.socket],
) -> None:
    """Read a guest's greeting; put it into `here` if it is one of the hosts."""
    data = _receive(guest)
    said = greeting[guest] = greeting[guest] + data
    if data and b"\n" not in said and len(said) < _LONGEST:
        return
    del greeting[guest]
    word, *numbers = said.decode(errors="replace").split()[:3] or [""]
    if word == _GREETING and len(numbers) == 2:
        index, count = numbers
        if count != str(place.count):
            told = f"JAX_NUM_PROCESSES={count} here, but {place.count} on host 0"
            with contextlib.suppress(OSError):
                guest.sendall(f"{_SORRY} {told}; set the same on every host\n".encode())
        elif index in map(str, range(1, place.count)):
            if before := here.pop(int(index), None):
                before.close()
            here[int(index)] = guest
            return
    guest.close()


def _turn_away(place: Place, here: Mapping[int, socket.socket], seconds: float) -> NoReturn:
    missing = [str(index) for index in range(1, place.count) if index not in here]
    port = place.coordinator.rpartition(":")[2]
    why = (
        f"{len(here) + 1} of {place.count} hosts came to the coordinator {place.coordinator} "
        f"(JAX_COORDINATOR_ADDRESS) in {seconds:.0f} s, host {', '.join(missing)} did not. See its "
        "log, and check that it trains with the same JAX_COORDINATOR_ADDRESS, its own "
        f"JAX_PROCESS_ID, and a firewall that lets hosts reach port {port}"
    )
    for link in here.values():
        with contextlib.suppress(OSError):
            link.sendall(f"{_SORRY} {why}\n".encode())
    raise EndpointError(f"--backend=jax: {why}")


def _join(place: Place, deadline: float, seconds: float) -> dict[int, socket.socket]:
    """Come to host 0 and wait until all are there."""
    host, _, port = place.coordinator.rpartition(":")
    address, why = (host.strip("[]"), int(port)), "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            link = socket.create_connection(address, min(left, 10.0))
            link.settimeout(None)
            link.sendall(f"{_GREETING} {place.index} {place.count}\n".encode())
            # Host 0 gives up first, and says who is missing.
            word, _, text = _answer(link, left + _NEWS_SECONDS).partition(" ")
            if word == _GO:
                return {0: link}
            link.close()
            if word == _SORRY:
                raise EndpointError(f"--backend=jax: {text}")
        except OSError as error:
            why = str(error)
        # Such as a process that is about to end, whose service still has the port.
        time.sleep(_RETRY_SECONDS)
    raise EndpointError(
        f"--backend=jax: the coordinator {place.coordinator} (JAX_COORDINATOR_ADDRESS) did not "
        f"answer {place} in {seconds:.0f} s ({why}). See the log of host 0 (JAX_PROCESS_ID=0), and "
        f"check that this is its address, and that the firewall lets hosts reach port {port}"
    )


def _answer(link: socket.socket, seconds: float) -> str:
    """Return the line of host 0; nothing where something else has the port."""
    give_up, said = time.monotonic() + seconds, b""
    while b"\n" not in said and len(said) < _LONGEST:
        if not select.select([link], [], [], max(0.0, give_up - time.monotonic()))[0]:
            break
        if not (data := _receive(link, 1)):
            break
        said += data
    return said.decode(errors="replace").strip()


def _bound(place: Place) -> socket.socket:
    """Listen where JAX's service will: at all addresses of this machine."""
    host, _, port = os.environ.get(_BIND, f":{place.coordinator.rpartition(':')[2]}").rpartition(
        ":"
    )
    host = host.strip("[]")
    try:
        if host in ("", "::") and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family)
    except OSError as error:
        raise EndpointError(
            f"--backend=jax: JAX_COORDINATOR_ADDRESS={place.coordinator}: this host can't listen "
            f"at port {port} ({error}); does another training run here? Wait for its end, or "
            "choose another port on every host"
        ) from error


def _receive(link: socket.socket, count: int = _LONGEST) -> bytes:
    try:
        return link.recv(count)
    except OSError:
        return b""


def _keep_alive(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _IDLE_SECONDS,
        "TCP_KEEPINTVL": _PROBE_SECONDS,
        "TCP_KEEPCNT": _PROBES,
    }
    for name, value in options.items():
        # macOS has other names.
        if (option := getattr(socket, name, None)) is not None:
            link.setsockopt(socket.IPPROTO_TCP, option, value)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[: _LONGEST // 4]
