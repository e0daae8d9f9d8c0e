"""Whose process is at the other end of a connection: others on this machine are kept out.

Loopback is shared by all users of a machine. Linux says in `/proc/net/tcp` which user a socket
belongs to (Documentation/networking/proc_net_tcp.rst); other systems say it to nobody but root.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# How a client that speaks IPv6 shows an address of IPv4.
_MAPPED = f"{int.from_bytes(bytes([0, 0, 255, 255]), sys.byteorder):08X}"
_UID, _INODE = 7, 9
_NOBODY = "0"
_ROOT = 0


def is_known() -> bool:
    """Return whether this system says whose a connection is."""
    return _TABLES[0].exists()


def may_enter(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Return whether a connection on loopback is of this process' user, or of root.

    What nobody holds any more has no user, and is not let in either.
    """
    return not is_known() or _user(_shown(client), _shown(server)) in (_ROOT, os.geteuid())


def _user(client: str, server: str) -> int | None:
    mapped = "0" * 16 + _MAPPED
    for table, before in zip(_TABLES, ("", mapped), strict=True):
        wanted = f" {before}{client} {before}{server} "
        try:
            text = table.read_text(encoding="ascii")
        except OSError:
            continue
        found = text.find(wanted)
        if found >= 0:
            row = text[text.rfind("\n", 0, found) + 1 :].partition("\n")[0].split()
            return None if row[_INODE] == _NOBODY else int(row[_UID])
    return None


def _shown(address: tuple[str, int]) -> str:
    host = int.from_bytes(socket.inet_aton(address[0]), sys.byteorder)
    return f"{host:08X}:{address[1]:04X}"
