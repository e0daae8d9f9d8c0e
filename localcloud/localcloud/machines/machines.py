"""The machines of the cloud: booted, halted, preempted, kept over restarts of the emulator.

First one machine with its files, its first process and its network, then all of them by key.
"""

import contextlib
import hashlib
import json
import logging
import os
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from localcloud.core import Cloud, MachineSpec, Record, machine_powered_off, projects
from localcloud.core.cloud import SerialLog
from localcloud.machines import metadata, processes
from localcloud.server import authority, proxy

log = logging.getLogger(__name__)
# Seconds beyond the grace for killing and collecting all processes.
_MARGIN = 15.0
_ROOT = Path(__file__).parents[2]
_COMMANDS = ("systemd-run", "systemctl", "shutdown", "poweroff", "halt", "reboot")
# Programs of the host that would act on the host instead of the machine.
_ABSENT = (
    *("apt", "apt-get", "dpkg", "docker", "journalctl"),
    *("service", "snap", "tune2fs", "update-rc.d"),
)
# Those that would keep its users apart, of which it has one.
_IN_VAIN = {
    "chown": "echo 'chown: a local machine has one user' >&2",
    "useradd": "echo 'useradd: a local machine has one user' >&2",
    "usermod": ":",
    "nft": "echo 'nft: a local machine has no packet filter' >&2",
    "setpriv": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"',
}
_KEPT = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@dataclass(frozen=True)
class Network:
    """What every machine's listener needs.

    Attributes:
        tls: shown to clients of Google's hosts.
        bundle: certificate authorities that the machine's clients trust.
        apis: answers the calls to Google's APIs.
    """

    tls: ssl.SSLContext
    bundle: Path
    apis: proxy.Answer


Power = Callable[[str], None]


class Machine:
    """A machine from boot to halt: a process of this computer with a network of its own.

    Its first process plays systemd (`supervisor`); it gets orders and sends events as JSON, a line
    each, over pipes whose end tells either side that the other is gone.

    Args:
        cloud: the cloud.
        spec: what to run.
        folder: its files, which outlive it.
        network: what its listener needs.
        port: of the listener, if it is free.
        on_power: gets `poweroff` or `reboot` when the guest asks for it or its first process dies.
    """

    def __init__(
        self,
        cloud: Cloud,
        spec: MachineSpec,
        folder: Path,
        network: Network,
        port: int,
        on_power: Power,
    ) -> None:
        self.image = Image(folder, spec.name, spec.programs)
        self.metadata = metadata.MetadataServer(cloud, spec)
        self._on_power = on_power
        self._halting = False
        # A killed emulator leaves processes behind where the kernel does not end orphans.
        processes.kill_all(self._marked)
        self._listener = _listen(port, network, self.metadata.answer)
        with (folder / "supervisor.log").open("ab") as errors:
            self._process = subprocess.Popen(
                _python("from localcloud.machines.supervisor import main; main()"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                # As on Debian; no other user gets into the home folder.
                umask=0o022,
            )
        self._order(self._config(spec, network))
        threading.Thread(target=self._hear, name=f"machine {spec.name}", daemon=True).start()

    @property
    def port(self) -> int:
        """The port of its listener."""
        return self._listener.port

    def processes(self) -> set[int]:
        """Return its processes, the first one included."""
        first = self._process.pid
        return {first} | processes.descendants(first) | self._marked()

    def guests(self) -> set[int]:
        """Return the processes that do the machine's work."""
        return self.processes() - {self._process.pid}

    def fill_disk(self, full: bool) -> None:
        """Let its disk be full, or not."""
        self._order({"full_disk": full})

    def address(self, port: int) -> tuple[str, int] | None:
        """Return where the host reaches a port of the machine; None if nothing listens at it."""
        with contextlib.suppress(OSError, ValueError):
            found = (self.image.run / processes.PORTS / str(port)).read_text(encoding="utf-8")
            return "127.0.0.1", int(found)
        return None

    def halt(self, grace: float) -> None:
        """End all its processes: politely for `grace` seconds, then by force."""
        self._halting = True
        with contextlib.suppress(OSError):
            self._order({"halt": grace})
        try:
            self._process.wait(grace + _MARGIN)
        except subprocess.TimeoutExpired:
            log.error("%s does not halt; killing it", self.image.folder.name)
            self._process.kill()
            self._process.wait()
        processes.kill_all(self._marked)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                _not_none(pipe).close()
        self.metadata.close()
        self._listener.stop()

    # The keys are those that `supervisor.System` reads. It imports only the standard library, so no
    # type checks that both agree.
    def _config(self, spec: MachineSpec, network: Network) -> dict[str, object]:
        return {
            "name": spec.name,
            "banner": f"{spec.machine_type} in {spec.zone}, a machine of the local cloud",
            "root": str(self.image.root),
            "run": str(self.image.run),
            "bin": str(self.image.bin),
            "serial": str(self.image.serial),
            "environment": self.image.environment(self.port, network.bundle),
            "daemons": spec.daemons,
            "daemon_environment": spec.environment,
            "shutdown_script": any(key.startswith("shutdown-script") for key in spec.attributes),
        }

    def _order(self, order: dict[str, object]) -> None:
        pipe = _not_none(self._process.stdin)
        pipe.write(json.dumps(order).encode() + b"\n")
        pipe.flush()

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in _not_none(self._process.stdout):
                event = json.loads(line)["event"]
                if event in ("poweroff", "reboot") and not self._halting:
                    self._on_power(event)
        if not self._halting:
            log.error("the first process of %s ended unexpectedly", self.image.folder.name)
            self._on_power("poweroff")

    def _marked(self) -> set[int]:
        return processes.marked("LOCALCLOUD_MACHINE", str(self.image.folder))


def _listen(port: int, network: Network, direct: proxy.Answer) -> proxy.Listener:
    """Listen at the port of the last boot, which clients outside may know, or at any free one."""
    try:
        listener = proxy.Listener(port, tls=network.tls, apis=network.apis, direct=direct)
    except OSError:
        listener = proxy.Listener(0, tls=network.tls, apis=network.apis, direct=direct)
    listener.start()
    return listener


def _not_none(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("the process has no pipe")
    return pipe


class Image:
    """The files of one machine.

    Its `bin` comes first on the PATH of its processes: programs that would act on this computer
    (`shutdown`, `apt`, `systemctl`) act on the machine, or say that it has none.

    Args:
        folder: of the machine; made when missing, with its content.
        host: its host name.
        programs: further ones by name, or others in place of the usual; each a shell script.
    """

    def __init__(self, folder: Path, host: str, programs: Mapping[str, str]) -> None:
        self.folder = folder
        self.root = folder / "root"
        """HOME, and the working directory of its processes."""
        self.run = folder / "run"
        self.bin = folder / "bin"
        self.serial = folder / "serial.log"
        for part in (self.root / "tmp", self.run, self.bin):
            part.mkdir(parents=True, exist_ok=True)
        self._install(host)
        for name, script in programs.items():
            self._program(name, script)

    def environment(self, port: int, bundle: Path) -> dict[str, str]:
        """Return what every process of the machine gets.

        Args:
            port: the machine's own listener, which is its network.
            bundle: certificate authorities.
        """
        network = f"127.0.0.1:{port}"
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        # Machines use the same package index as the host.
        kept |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        return {
            "LANG": "C.UTF-8",
            **kept,
            "HOME": str(self.root),
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash",
            "TMPDIR": str(self.root / "tmp"),
            "XDG_RUNTIME_DIR": str(self.run),
            "PATH": f"{self.bin}:{os.environ.get('PATH', os.defpath)}",
            "LOCALCLOUD_MACHINE": str(self.folder),
            "GCE_METADATA_HOST": network,
            "GCE_METADATA_IP": network,
            "GCE_METADATA_ROOT": network,
            **dict.fromkeys(_PROXY_VARIABLES, f"http://{network}"),
            **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"),
            **dict.fromkeys(authority.BUNDLE_VARIABLES, str(bundle)),
        }

    def _install(self, host: str) -> None:
        # The interpreter of the local cloud, so that scripts find the packages next to it.
        python = shlex.quote(sys.executable)
        self._program("python3", f'exec {python} "$@"')
        self._program("pip3", f'exec {python} -m pip "$@"')
        self._program("sudo", 'while [ "$1" = -n ] || [ "$1" = -E ]; do shift; done\nexec "$@"')
        for name, script in _IN_VAIN.items():
            self._program(name, script)
        self._program("hostname", f"echo {shlex.quote(host)}")
        for name in _COMMANDS:
            self._program(name, _guest_call(f"command({name!r}, sys.argv[1:])"))
        runner = _guest_call("run_scripts(sys.argv[1:])")
        self._program("google_metadata_script_runner", runner)
        for name in _ABSENT:
            message = f"{name}: not part of a local machine"
            self._program(name, f"echo {shlex.quote(message)} >&2\nexit 127")

    def _program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)


def _guest_call(call: str) -> str:
    """Return a shell line that runs a call of the module `guest`."""
    words = _python(f"from localcloud.machines import guest; sys.exit(guest.{call})")
    return f'exec {shlex.join(words)} "$@"'


def _python(statements: str) -> list[str]:
    """Return a command line that runs code of this package.

    Without `site`, which would double the time to start: scripts call these programs often.
    """
    program = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); {statements}"
    return [sys.executable, "-S", "-c", program]


# All machines. Their serial ports may also go to Cloud Logging, which keeps them for 30 days when
# the VM is gone: "View serial port output",
# cloud.google.com/compute/docs/troubleshooting/viewing-serial-port-output.

MACHINE = "machine"
"""The store's kind of machines, by key."""
# Seconds between the polite request and force, by the cloud's latency. Google gives a stopped VM
# about 90 s (cloud.google.com/compute/docs/instances/deleting-instance) and a preempted one 30 s
# (…/instances/preemptible). The setting `grace`, with `stop` and `preempt`, overrides them.
_GRACE = {"real": {"stop": 90.0, "preempt": 30.0}, "none": {"stop": 10.0, "preempt": 5.0}}
# Seconds, when the emulator stops: people wait for it, and its machines boot again.
_SUSPEND = 2.0
# Bytes of a serial port in one answer.
_PIECE = 1 << 20
RETENTION = 30 * 86400.0
"""Seconds for which Cloud Logging keeps an entry."""
KEPT = "serial-log"
"""The store's kind of logs whose VM is gone, by the VM's path and its number."""
SERIAL = "serial.log"
_SWITCH = "serial-port-logging-enable"


class Machines:
    """The machines by key; see `MachineSpec`.

    Each has a lock of its own, so that one which takes its time to halt holds up no other. Halting
    must not hold the store's lock: the machine's processes still call APIs.
    """

    def __init__(self, cloud: Cloud, network: Network) -> None:
        self._cloud = cloud
        self._network = network
        self._running: dict[str, Machine] = {}
        self._locks: dict[str, threading.RLock] = {}
        self._lock = threading.Lock()

    def boot(self, spec: MachineSpec) -> None:
        """Start the machine, again if it runs; returns at once."""
        with self._locked(spec.key):
            self._halt(spec.key, self.grace("stop"))
            # Named by its disk where there is one: that may outlive the machine.
            name = f"{spec.name}-{_digest(spec.disk or spec.key)}"
            record = self._record(spec.key) or {"folder": name, "port": 0}
            folder = self._cloud.folder("machines", record["folder"])
            path = folder / SERIAL
            begins = (path.stat().st_size if path.exists() else 0), self._cloud.clock.now()
            on_power = partial(self._in_background, spec.key)
            machine = Machine(self._cloud, spec, folder, self._network, record["port"], on_power)
            self._running[spec.key] = machine
            record |= {"spec": asdict(spec), "running": True, "port": machine.port}
            record["boots"] = [*record.get("boots", []), begins]
            self._cloud.store.put(MACHINE, spec.key, record)

    def halt(self, key: str, *, grace: float | None = None) -> None:
        """Stop the machine: SIGTERM, after `grace` seconds SIGKILL; its folder stays."""
        with self._locked(key):
            self._halt(key, self.grace("stop") if grace is None else grace)
            record = self._record(key)
            if record is not None:
                self._cloud.store.put(MACHINE, key, record | {"running": False})

    def preempt(self, key: str) -> None:
        """Take the machine away as Google does: the metadata server says so, then it is halted.

        Google sends ACPI G2 Soft Off with the notice and G3 Mechanical Off 30 s later.
        """
        machine = self._running.get(key)
        if machine is not None:
            machine.metadata.publish(preempted=True)
        self.halt(key, grace=self.grace("preempt"))

    def remove(self, key: str, *, keep_disk: bool = False) -> None:
        """Halt the machine and delete its folder, unless that is on a disk which stays."""
        with self._locked(key):
            self._halt(key, self.grace("stop"))
            record = self._record(key)
            if record is not None:
                _keep_serial_log(self._cloud, record, self._folder(record))
                if keep_disk:
                    (self._folder(record) / SERIAL).unlink(missing_ok=True)
                else:
                    shutil.rmtree(self._folder(record), ignore_errors=True)
                self._cloud.store.delete(MACHINE, key)
                metadata.forget_guest_attributes(self._cloud, key)
        with self._lock:
            self._locks.pop(key, None)

    def discard(self, disk: str) -> None:
        """Delete the content of a disk that no machine has any longer."""
        for folder in (self._cloud.home / "machines").glob(f"*-{_digest(disk)}"):
            shutil.rmtree(folder, ignore_errors=True)

    def update(self, spec: MachineSpec) -> None:
        """Change what the metadata server of a machine says, also of one that is off."""
        with self._locked(spec.key):
            record = self._record(spec.key)
            if record is None:
                return
            self._cloud.store.put(MACHINE, spec.key, record | {"spec": asdict(spec)})
            machine = self._running.get(spec.key)
            if machine is not None:
                machine.metadata.publish(spec=spec)

    def serial(self, key: str, start: int = 0) -> tuple[str, int]:
        """Return serial port 1 from byte `start`, at most 1 MiB, and where to continue."""
        record = self._record(key)
        path = self._folder(record) / SERIAL if record else None
        if path is None or not path.exists():
            return "", start
        with path.open("rb") as file:
            # A machine that was recreated under the same key has a new log.
            file.seek(start if start <= path.stat().st_size else 0)
            start = file.tell()
            data = file.read(_PIECE)
        if len(data) == _PIECE:
            # Not in the middle of a line, nor of a character.
            data = data[: data.rfind(b"\n") + 1] or data
        return data.decode("utf-8", "replace"), start + len(data)

    def serial_logs(self, project: str) -> list[SerialLog]:
        """Return what VMs of a project have sent to Cloud Logging, also those that are gone."""
        store, cloud = self._cloud.store, self._cloud
        gone = (record for _, record in store.items(KEPT, f"projects/{project}/"))
        found = [_log(each, each["boots"], _kept_path(cloud, each["number"])) for each in gone]
        for _, record in store.items(MACHINE, f"projects/{project}/zones/"):
            if _is_logged(cloud, record):
                path = self._folder(record) / SERIAL
                found.append(_log(record["spec"], record.get("boots", []), path))
        return found

    def running(self, key: str) -> bool:
        """Return whether the machine is on."""
        return key in self._running

    def port(self, key: str) -> int:
        """Return the port of a running machine's own listener: its metadata server and proxy.

        Raises KeyError: when the machine is off.
        """
        return self._running[key].port

    def address(self, key: str, port: int) -> tuple[str, int] | None:
        """Return where the host reaches a machine's port; None if it is off or nothing listens."""
        machine = self._running.get(key)
        return machine.address(port) if machine else None

    def guest_attributes(self, key: str) -> dict[str, str]:
        """Return what the guest has written, by `namespace/key`."""
        return metadata.guest_attributes(self._cloud, key)

    def processes(self) -> list[int]:
        """Return the processes of all machines."""
        return sorted({pid for key in list(self._running) for pid in self.pids(key)})

    def pids(self, key: str) -> list[int]:
        """Return the processes of one machine; none when it is off."""
        machine = self._running.get(key)
        return sorted(machine.processes()) if machine else []

    def guests(self, key: str) -> list[int]:
        """Return the processes that do one machine's work; none when it is off."""
        machine = self._running.get(key)
        return sorted(machine.guests()) if machine else []

    def fill_disk(self, key: str, full: bool) -> None:
        """Let a running machine's disk be full, or not."""
        machine = self._running.get(key)
        if machine is not None:
            machine.fill_disk(full)

    def suspend_all(self) -> None:
        """End all processes as the emulator stops; `resume_all` boots the machines again."""
        self._each(list(self._running), self._suspend)

    def resume_all(self) -> None:
        """Boot the machines that ran when the emulator stopped."""
        specs = {
            key: MachineSpec(**_tuples(record["spec"]))
            for key, record in self._cloud.store.items(MACHINE)
            if record["running"] and key not in self._running
        }
        self._each(list(specs), lambda key: self.boot(specs[key]))

    def grace(self, what: str) -> float:
        """Return seconds between the polite request to end and force, for `stop` or `preempt`."""
        setting = self._cloud.setting("grace")
        return float(setting.get(what, _GRACE[self._cloud.latency_profile][what]))

    def _suspend(self, key: str) -> None:
        with self._locked(key):
            self._halt(key, _SUSPEND)

    def _halt(self, key: str, grace: float) -> None:
        machine = self._running.get(key)
        if machine is not None:
            machine.halt(grace)
            del self._running[key]

    def _in_background(self, key: str, event: str) -> None:
        # In a thread of its own: the machine's thread must keep reading while it halts.
        threading.Thread(target=self._power, args=(key, event), daemon=True).start()

    def _power(self, key: str, event: str) -> None:
        record = self._record(key)
        if record is None:
            return
        if event == "reboot":
            self.boot(MachineSpec(**_tuples(record["spec"])))
            return
        self.halt(key)
        machine_powered_off.run(self._cloud, key)

    def _each(self, keys: list[str], action: Callable[[str], None]) -> None:
        if keys:
            with ThreadPoolExecutor(max_workers=min(len(keys), 8)) as pool:
                list(pool.map(action, keys))

    def _locked(self, key: str) -> threading.RLock:
        with self._lock:
            return self._locks.setdefault(key, threading.RLock())

    def _record(self, key: str) -> Record | None:
        return self._cloud.store.get(MACHINE, key)

    def _folder(self, record: Record) -> Path:
        return self._cloud.home / "machines" / str(record["folder"])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _tuples(spec: Record) -> Record:
    """Return a spec as it was before it became JSON, which has no tuples."""
    return spec | {name: tuple(spec[name]) for name in ("scopes", "tags")}


def _is_logged(cloud: Cloud, machine: Record) -> bool:
    """Return whether metadata asks for it; the host of a TPU has no port that could be asked for.

    The local cloud looks when it is asked, not when a line is written.
    """
    spec = machine["spec"]
    common = projects.common_metadata(cloud, spec["project"])
    metadata = {item["key"]: item.get("value", "") for item in common} | spec["attributes"]
    return "/instances/" in spec["key"] and metadata.get(_SWITCH, "").upper() == "TRUE"


def _keep_serial_log(cloud: Cloud, machine: Record, folder: Path) -> None:
    """Keep the log of a machine that is about to be deleted, if it is wanted."""
    _forget_old(cloud)
    source, spec = folder / SERIAL, machine["spec"]
    if not _is_logged(cloud, machine) or not source.exists():
        return
    source.replace(_kept_path(cloud, spec["number"]))
    record = {name: spec[name] for name in ("project", "zone", "name", "number")}
    record |= {"boots": machine.get("boots", []), "ended": cloud.clock.now()}
    cloud.store.put(KEPT, f"{spec['key']}/{spec['number']}", record)


def _forget_old(cloud: Cloud) -> None:
    for key, gone in cloud.store.items(KEPT):
        if gone["ended"] < cloud.clock.now() - RETENTION:
            _kept_path(cloud, gone["number"]).unlink(missing_ok=True)
            cloud.store.delete(KEPT, key)


def _log(machine: Record, boots: list[Any], path: Path) -> SerialLog:
    named = {field: machine[field] for field in ("project", "zone", "name", "number")}
    output = path.read_bytes() if path.exists() else b""
    return SerialLog(**named, boots=tuple((begin, when) for begin, when in boots), output=output)


def _kept_path(cloud: Cloud, number: int) -> Path:
    return cloud.folder("serial-logs") / f"{number}.log"
