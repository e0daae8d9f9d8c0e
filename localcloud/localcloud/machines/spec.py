"""What a machine is, as the APIs hand it to whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
