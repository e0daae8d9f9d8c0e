"""The cloud as every handler gets it: state, time, identity, hooks, faults and machines."""

import hashlib
import logging
import os
import random
import secrets
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar

from localcloud import data
from localcloud.core.call import Principal, Tokens
from localcloud.core.clock import Clock
from localcloud.core.errors import ApiError
from localcloud.core.store import Operations, Record, Store

Latency = Literal["none", "real"]
DEVELOPER = "user:developer@tpu-stack.local"
SETTING = "setting"
"""The store's kind of settings, by name."""
_SECRET = "secret"
_OTHERS = 0o077
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_FAULT = "fault"


class NotOwnError(Exception):
    """The home folder belongs to another user, or is open to others and holds other files."""


class Cloud:
    """One local Google Cloud: what every handler gets as its first argument.

    Args:
        home: folder of its state; created when missing.
        clock: the wall clock, or a virtual one in tests.
        latency: `real` makes operations take as long as Google's do, `none` not at all.
    """

    machines: "Machines"
    """Set by `LocalCloud`, which knows what a machine's network leads to."""

    def __init__(
        self, home: Path, *, clock: Clock | None = None, latency: Latency = "none"
    ) -> None:
        self.home = home
        # First: all that follows is written there, and must be closed to other users.
        own(home)
        self.clock = clock or Clock()
        self.latency_profile = latency
        self.store = Store(home / "state.sqlite")
        secret = _secret(home / _SECRET)
        self.tokens = Tokens(secret)
        self.admin_key = admin_key(secret)
        """What the emulator's own command line shows to be let in."""
        self.operations = Operations(self.store, self.clock, self)
        self.faults = Faults(self.store, self.clock, self.operations.number)
        self.log_request: Callable[[str], object] = logging.getLogger("localcloud.requests").info
        """Gets a line for each request."""
        self.asked: dict[str, dict[str, bool]] = {}
        """By member: which permissions its calls asked for since the start, and if it had them."""

    def seconds(self, what: str) -> float:
        """Return how long `what` (a key of data/latencies.yaml, such as `tpu.create`) takes."""
        if self.latency_profile == "none":
            return 0.0
        return float(data.load("latencies")[what])

    def token(self, principal: Principal, *, lifetime: float = 3600.0, machine: str = "") -> str:
        """Return a bearer token that is valid for `lifetime` seconds."""
        now = self.clock.now()
        return self.tokens.issue(principal, issued=now, expires=now + lifetime, machine=machine)

    def setting(self, name: str) -> Record:
        """Return a switch for scarcity, refusal or grace; empty where it is not set."""
        return self.store.view(SETTING, name) or {}

    def folder(self, *parts: str) -> Path:
        """Return a folder below the cloud's home, created when missing."""
        path = self.home.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        """Stop the clock and close the store; the state stays on disk."""
        self.clock.close()
        self.store.close()


def own(home: Path) -> None:
    """Make a folder that no other user can enter, or close one that the local cloud has made.

    Raises:
        NotOwnError: when it holds other files too, and other users may enter it.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = home.stat()
    if not found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        return
    if found.st_uid != os.geteuid() or (any(home.iterdir()) and not (home / _SECRET).exists()):
        raise NotOwnError(
            f"{home}: other users may enter it, and it holds other files or is not yours. Name a "
            "folder of its own; a new one is made"
        )
    home.chmod(0o700)


def admin_key(secret: bytes) -> str:
    """Return the key to `/_local/v1/`, made of the secret in the home folder."""
    return hashlib.sha256(b"administrator" + secret).hexdigest()


def _secret(path: Path) -> bytes:
    if not path.exists():
        # No other user may read it, not even between creation and writing.
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()


class Hook(Generic[Arguments, Result]):
    """The functions to call at an event, in the order of their registration.

    By hooks the core and the machines reach services, which they may not import.
    """

    def __init__(self) -> None:
        self._functions: list[Callable[Arguments, Result]] = []

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Register a function, as its decorator."""
        self._functions.append(function)
        return function

    def run(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> list[Result]:
        """Call every function and return their results."""
        return [function(*args, **kwargs) for function in self._functions]


cloud_started: Hook[[Cloud], None] = Hook()
"""Runs when the emulator starts, before its first request."""
service_enabled: defaultdict[str, Hook[[Cloud, str], None]] = defaultdict(Hook)
"""By API: runs when a project, given by its id, has enabled it."""
machine_powered_off: Hook[[Cloud, str], None] = Hook()
"""Runs when a machine, given by its key, has powered off without being told to."""


class AnswerLost(ConnectionError):
    """The call was carried out, and its connection closes without an answer."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where and how often.

    Attributes:
        method: pattern over method ids, such as `storage.objects.*`.
        resource: pattern over the request's path; `*` for any.
        status: HTTP status to answer, or 0 for none: the call goes through after `delay`, or its
            connection closes if it was `carried_out`.
        message: the error's message; by default one that names the fault.
        delay: seconds to hold the call back first, or its answer if it was `carried_out`.
        carried_out: whether the call takes effect, and only its answer goes wrong. A call that
            would be refused anyway is not hit.
        count: how many calls it hits before it is used up; 0 for all.
        skip: how many matching calls pass before the first one is hit.
        probability: chance that a matching call is hit.
    """

    method: str
    resource: str = "*"
    status: int = 503
    message: str = ""
    delay: float = 0.0
    count: int = 0
    skip: int = 0
    probability: float = 1.0
    carried_out: bool = False

    def problems(self) -> list[str]:
        """Return what is wrong with it, one sentence each."""
        found = []
        if self.status and not 400 <= self.status <= 599:
            found.append(f"status must be 400 to 599, or 0 for none, not {self.status}")
        if not 0 < self.probability <= 1:
            found.append(f"probability must be above 0 and at most 1, not {self.probability}")
        counted = {"delay": self.delay, "count": self.count, "skip": self.skip}
        found += [f"{k} must not be negative, but is {v}" for k, v in counted.items() if v < 0]
        if not self.status and not self.delay and not self.carried_out:
            found.append("a fault without a status needs a delay")
        return found


class Faults:
    """The faults that are in force, kept in the store.

    Args:
        store: where they are kept.
        clock: holds calls back.
        number: a new number at each call, for their ids.

    Chances are drawn from a fixed seed: a scenario that failed fails again.
    """

    def __init__(self, store: Store, clock: Clock, number: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._number = number
        self._random = random.Random(0)

    def add(self, fault: Fault) -> str:
        """Put a fault in force and return its id."""
        key = f"fault-{self._number()}"
        self._store.put(_FAULT, key, asdict(fault))
        return key

    def lift(self, key: str) -> None:
        """Lift one fault, unless it is used up already."""
        self._store.delete(_FAULT, key)

    def clear(self) -> None:
        """Lift all faults."""
        for key in self._store.keys(_FAULT):
            self._store.delete(_FAULT, key)

    def items(self) -> list[tuple[str, Fault]]:
        """Return the faults in force by id."""
        return [(key, Fault(**record)) for key, record in self._store.items(_FAULT)]

    def inject(self, method: str, path: str, *, carried_out: bool = False) -> None:
        """Apply the first fault that matches this call, or the answer to one carried out.

        Raises ApiError: with the fault's status. AnswerLost: when there is to be no answer.
        """
        fault = self._take(method, path, carried_out)
        if fault is None:
            return
        if fault.delay:
            self._clock.sleep(fault.delay)
        if fault.status:
            message = fault.message or f"injected fault: {method} answers {fault.status}"
            raise ApiError(fault.status, message)
        if carried_out:
            raise AnswerLost(f"injected fault: the answer to {method} is lost")

    # Looked for and counted under one lock: of two calls at once only one may take the last hit.
    def _take(self, method: str, path: str, carried_out: bool) -> Fault | None:
        if not self._store.has(_FAULT):
            return None
        with self._store.locked():
            for key, fault in self.items():
                if fault.carried_out != carried_out:
                    continue
                if not fnmatchcase(method, fault.method) or not fnmatchcase(path, fault.resource):
                    continue
                record = asdict(fault)
                if fault.skip:
                    self._store.put(_FAULT, key, record | {"skip": fault.skip - 1})
                    continue
                if self._random.random() >= fault.probability:
                    continue
                if fault.count == 1:
                    self._store.delete(_FAULT, key)
                elif fault.count:
                    self._store.put(_FAULT, key, record | {"count": fault.count - 1})
                return fault
        return None


@dataclass(frozen=True)
class MachineSpec:
    """A VM or the host of a TPU slice.

    Attributes:
        key: the resource's path, unique in the cloud, such as
            `projects/p/zones/z/instances/i` or `projects/p/locations/z/nodes/n/hosts/0`.
        project: project id.
        zone: such as `us-central1-b`.
        name: the short name, which is the host name too.
        number: the numeric id that the metadata server shows.
        machine_type: such as `n1-standard-2`.
        attributes: instance metadata, `startup-script` among it.
        service_account: e-mail of the attached account; None for none.
        scopes: OAuth scopes of the tokens that the metadata server gives out.
        tags: network tags.
        disk: the id of the disk that it boots from, which may outlive it; empty where it has none
            of its own.
        preemptible: what the metadata server says under `scheduling/preemptible`.
        daemons: processes that the image itself runs next to the start-up script, by name; each
            an argument list, restarted when it ends while the machine runs.
        environment: variables for the daemons.
        programs: further programs of the image, or others in place of its own, by name; each the
            text of a shell script.
        details: further entries of `instance/` in the metadata server, in the form of its JSON,
            such as `networkInterfaces`, `scheduling` or `image`.
    """

    key: str
    project: str
    zone: str
    name: str
    number: int
    machine_type: str
    attributes: dict[str, str] = field(default_factory=dict)
    service_account: str | None = None
    scopes: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    disk: str = ""
    preemptible: bool = False
    daemons: dict[str, list[str]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    programs: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SerialLog:
    """What a VM's serial port 1 has sent to Cloud Logging.

    Attributes:
        project: project id.
        zone: such as `us-central1-b`.
        name: the VM's.
        number: its numeric id, which tells it from others of its name.
        boots: for each boot the byte with which its output begins, and when (seconds since the
            epoch).
        output: all of it.
    """

    project: str
    zone: str
    name: str
    number: int
    boots: tuple[tuple[int, float], ...]
    output: bytes


class Machines(Protocol):
    """The machines of a cloud by key; see `MachineSpec`.

    The package `machines` implements it with processes. Tests of what the APIs say have another,
    without: a boot takes no time then.
    """

    def boot(self, spec: MachineSpec) -> None:
        """Start the machine, again if it runs; return at once."""

    def halt(self, key: str, *, grace: float | None = None) -> None:
        """Stop the machine: SIGTERM, after `grace` seconds SIGKILL; its folder stays."""

    def preempt(self, key: str) -> None:
        """Take the machine away as Google does: announce it, then halt."""

    def remove(self, key: str, *, keep_disk: bool = False) -> None:
        """Halt the machine and delete its folder, unless it is on a disk that stays."""

    def discard(self, disk: str) -> None:
        """Delete the content of a disk that no machine has any longer."""

    def update(self, spec: MachineSpec) -> None:
        """Change what the metadata server of a machine says, also of one that is off."""

    def serial(self, key: str, start: int = 0) -> tuple[str, int]:
        """Read serial port 1 from byte `start`; return it and where to continue."""

    def serial_logs(self, project: str) -> list[SerialLog]:
        """Return what VMs of a project have sent to Cloud Logging, also those that are gone."""

    def running(self, key: str) -> bool:
        """Return whether the machine is on."""

    def port(self, key: str) -> int:
        """Return the port of a running machine's own listener: its metadata server and proxy.

        Raises KeyError: when the machine is off.
        """

    def address(self, key: str, port: int) -> tuple[str, int] | None:
        """Return where the host reaches a port of a machine; None if nothing listens there."""

    def guest_attributes(self, key: str) -> dict[str, str]:
        """Return what the guest has written, by `namespace/key`."""

    def processes(self) -> list[int]:
        """List the processes of all machines."""

    def pids(self, key: str) -> list[int]:
        """List the processes of one machine; none when it is off."""

    def guests(self, key: str) -> list[int]:
        """List the processes that do one machine's work; none when it is off."""

    def fill_disk(self, key: str, full: bool) -> None:
        """Let a running machine's disk be full, or not."""

    def suspend_all(self) -> None:
        """End all processes as the emulator stops; `resume_all` boots the machines again."""

    def resume_all(self) -> None:
        """Boot the machines that ran when the emulator stopped."""
