"""One machine that runs: its files and programs, its first process, its network."""

import contextlib
import json
import logging
import os
import shlex
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from localcloud.core.cloud import Cloud, MachineSpec
from localcloud.machines import processes
from localcloud.machines.metadata import MetadataServer
from localcloud.machines.unit import PORTS
from localcloud.server.authority import BUNDLE_VARIABLES
from localcloud.server.proxy import Answer, Listener

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
    apis: Answer


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
        on_power: Callable[[str], None],
    ) -> None:
        self.image = Image(folder, spec.name, spec.programs)
        self.metadata = MetadataServer(cloud, spec)
        self._on_power = on_power
        self._halting = False
        # A killed emulator leaves processes behind where the kernel does not end orphans.
        processes.kill_all(self._marked)
        self._listener = _listen(port, network, self.metadata)
        with (folder / "supervisor.log").open("ab") as errors:
            self._process = subprocess.Popen(
                supervisor_command(),
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
            found = (self.image.run / PORTS / str(port)).read_text(encoding="utf-8")
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


def _listen(port: int, network: Network, metadata: MetadataServer) -> Listener:
    """Listen at the port of the last boot, which clients outside may know, or at any free one."""
    try:
        listener = Listener(port, tls=network.tls, apis=network.apis, direct=metadata.answer)
    except OSError:
        listener = Listener(0, tls=network.tls, apis=network.apis, direct=metadata.answer)
    listener.start()
    return listener


def _not_none(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("the process has no pipe")
    return pipe


class Image:
    """The files of one machine.

    Args:
        folder: of the machine; made when missing, with its content.
        host: its host name.
        programs: further ones by name, or others in place of the usual; each a shell script.
    """

    def __init__(
        self, folder: Path, host: str, programs: Mapping[str, str] = MappingProxyType({})
    ) -> None:
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
            **dict.fromkeys(BUNDLE_VARIABLES, str(bundle)),
        }

    def _install(self, host: str) -> None:
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


def supervisor_command() -> list[str]:
    """Return the command line of a machine's first process."""
    return _python("from localcloud.machines.supervisor import main; main()")


def _python(statements: str) -> list[str]:
    """Return a command line that runs code of this package.

    Without `site`, which would double the time to start: scripts call these programs often.
    """
    program = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); {statements}"
    return [sys.executable, "-S", "-c", program]
