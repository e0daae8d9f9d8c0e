"""The description of a machine, and the interface to those that run machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


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
        daemons: processes that the image itself runs beside the start-up script, by name; each
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
    """The machines of a cloud by key; see `MachineSpec`."""

    def boot(self, spec: MachineSpec) -> None:
        """Start the machine, again if it runs; return at once."""

    def halt(self, key: str, *, grace: float | None = None) -> None:
        """Stop the machine: SIGTERM, after `grace` seconds SIGKILL; its folder stays."""

    def preempt(self, key: str) -> None:
        """Take the machine away as Google does: announce it, then halt."""

    def remove(self, key: str, *, keep_disk: bool = False) -> None:
        """Halt the machine and delete its folder, unless that is on a disk which stays."""

    def discard(self, disk: str) -> None:
        """Delete what lies on a disk that no machine has any more."""

    def update(self, spec: MachineSpec) -> None:
        """Change what the metadata server of a machine says, also of one that is off."""

    def serial(self, key: str, start: int = 0) -> tuple[str, int]:
        """Read serial port 1 from byte `start` on; also return where to go on reading."""

    def serial_logs(self, project: str) -> list[SerialLog]:
        """Return what VMs of a project have sent to Cloud Logging, also those that are gone."""

    def running(self, key: str) -> bool:
        """Return whether the machine is on."""

    def port(self, key: str) -> int:
        """Return the port of a running machine's own listener: its metadata server and proxy.

        Raises:
            KeyError: when the machine is off.
        """

    def address(self, key: str, port: int) -> tuple[str, int] | None:
        """Return where the host reaches a port of a machine; None if nobody listens there."""

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
