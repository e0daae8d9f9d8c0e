"""Connections of other users of the machine are refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from localcloud.server import proxy
from localcloud.server.proxy import Listener

NOBODY = 65534
ASK = """
import encodings.idna, os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as there:
    there.sendall(b"GET / HTTP/1.1\\r\\nHost: metadata\\r\\nConnection: close\\r\\n\\r\\n")
    try:
        print(len(there.recv(100)))
    except ConnectionResetError:
        print(0)
"""

pytestmark = pytest.mark.skipif(not proxy.knows_users(), reason="this system says whose to nobody")


def heard(port: int, user: int = os.geteuid()) -> int:
    """How much a process of this user, or another one, is answered."""
    command = [sys.executable, "-I", "-c", ASK, str(port), str(user)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def test_a_process_of_this_user_is_answered(listener: Listener) -> None:
    assert heard(listener.port) > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as somebody else")
def test_a_process_of_another_user_is_not(listener: Listener) -> None:
    assert heard(listener.port, NOBODY) == 0


def test_a_process_of_this_user_is_not_where_the_listener_is_another_ones(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    monkeypatch.setattr(proxy, "_ROOT", -1)
    assert heard(listener.port) == 0


def test_a_socket_without_an_owner_is_not_let_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        with socket.create_connection(here) as client:
            there = client.getsockname()
            accepted, _ = server.accept()
            assert proxy.may_enter(there, here)
        # Its owner has closed it: the kernel shows it, of user 0 and without a file.
        assert not proxy.may_enter(there, here)
        accepted.close()
    assert not proxy.may_enter(("127.0.0.1", 1), here)


def test_clients_that_speak_ipv6_are_recognized() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.socket(socket.AF_INET6)
        client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        with client:
            client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
            assert proxy.may_enter(("127.0.0.1", client.getsockname()[1]), server.getsockname())
