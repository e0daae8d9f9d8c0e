"""What a local machine is made of: its folder, the programs of its image, its environment."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_ROOT = Path(__file__).parents[2]
_COMMANDS = ("systemd-run", "systemctl", "shutdown", "poweroff", "halt", "reboot")
# Programs of the host that would act on the host instead of the machine.
_ABSENT = (
    "apt",
    "apt-get",
    "dpkg",
    "docker",
    "journalctl",
    "service",
    "snap",
    "tune2fs",
    "update-rc.d",
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
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "PIP_CERT",
)


class Image:
    """The files of one machine.

    Args:
        folder: of the machine; made when missing, with all that lies in it.
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
            **dict.fromkeys(_CA_VARIABLES, str(bundle)),
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
            call = f"from localcloud.machines.guest import command; command({name!r}, argv)"
            self._program(name, python_call(call))
        runner = "from localcloud.machines.guest import run_scripts; run_scripts(argv)"
        self._program("google_metadata_script_runner", python_call(runner))
        for name in _ABSENT:
            said = f"{name}: not part of a local machine"
            self._program(name, f"echo {shlex.quote(said)} >&2\nexit 127")

    def _program(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)


def python_call(statements: str) -> str:
    """Return a shell line that runs `…; main(…)` of this package with its arguments as `argv`.

    Without `site`, which would double the time to start.
    """
    imports, _, call = statements.rpartition("; ")
    program = (
        f"import sys; sys.path.insert(0, {str(_ROOT)!r}); argv = sys.argv[1:]; "
        f"{imports}; sys.exit({call})"
    )
    return f'exec {shlex.quote(sys.executable)} -S -c {shlex.quote(program)} "$@"'


def supervisor_command() -> list[str]:
    """Return the command line of a machine's first process."""
    program = (
        f"import sys; sys.path.insert(0, {str(_ROOT)!r}); "
        "from localcloud.machines.supervisor import main; main()"
    )
    return [sys.executable, "-S", "-c", program]
