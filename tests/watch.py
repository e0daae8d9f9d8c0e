"""What a command does to its machine: processes, their memory, and the hosts that they ask."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from urllib.parse import urlsplit

import psutil
import pytest
from pip._internal.models.index import PyPI

from localcloud.core.call import Request, Response
from localcloud.server.proxy import Egress, Listener

_MIB = 1 << 20


class Watch(threading.Thread):
    """Samples the process trees below some roots: memory, connections, and what still runs.

    Args:
        roots: gives the process ids whose descendants count, this process included.
        interval: seconds between two samples.
    """

    def __init__(self, roots: Callable[[], Iterable[int]], interval: float = 0.5) -> None:
        super().__init__(daemon=True)
        self._roots, self._interval = roots, interval
        self._seen: set[psutil.Process] = set()
        self._stopped = threading.Event()
        self.peak_mib = 0.0
        """Largest sum of resident memory in a sample; shared pages count for each process."""
        self.elsewhere: set[str] = set()
        """Addresses of other machines to which a process was connected in a sample."""

    def run(self) -> None:
        """Take samples until it is stopped."""
        while not self._stopped.wait(self._interval):
            self._sample()

    def stop(self) -> None:
        """Wait for the last sample."""
        self._stopped.set()
        self.join()

    def left(self) -> list[psutil.Process]:
        """Return the processes that were seen and still run, this one aside."""
        return [each for each in self._seen - {psutil.Process()} if _lives(each)]

    def _sample(self) -> None:
        processes: set[psutil.Process] = set()
        resident = 0
        for pid in self._roots():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                processes |= {root, *root.children(recursive=True)}
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                resident += process.memory_info().rss
                self.elsewhere |= _elsewhere(process)
        # A new set: `left` may walk the old one in another thread.
        self._seen = self._seen | processes
        self.peak_mib = max(self.peak_mib, resident / _MIB)


def _elsewhere(process: psutil.Process) -> set[str]:
    connections = process.net_connections("inet")
    remote = {ipaddress.ip_address(each.raddr.ip) for each in connections if each.raddr}
    own = {getattr(address, "ipv4_mapped", None) or address for address in remote}
    return {str(address) for address in own if not address.is_loopback}


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


# The hosts that a command asks: it goes through a proxy on loopback, and `Watch.elsewhere` has what
# goes past it.


class _WayOut(Listener):
    """A proxy that answers for no host, not even Google's. `asked_hosts` sets what is reached."""

    def __init__(self) -> None:
        def refuse(request: Request) -> Response:
            return Response(400, b"this is a proxy")

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        super().__init__(0, tls=tls, apis=refuse, direct=refuse)

    @staticmethod
    def emulates(host: str) -> bool:
        """Answer for no host."""
        return False


@contextlib.contextmanager
def asked_hosts(reached: Collection[str] = ()) -> Iterator[tuple[set[str], dict[str, str]]]:
    """Keep the hosts that a proxy is asked for, and give the variables by which programs find it.

    Local clouds in this process are heard, too.

    Args:
        reached: the hosts that are reached. All others are unreachable, as without a network.
    """
    hosts: set[str] = set()
    tunnel, fetch = Egress.tunnel, Egress.fetch

    def note(host: str) -> None:
        hosts.add(host)
        if host not in reached:
            raise OSError(f"this test doesn't reach {host}")

    def noted_tunnel(egress: Egress, host: str, port: int) -> socket.socket:
        note(host)
        return tunnel(egress, host, port)

    def noted_fetch(egress: Egress, request: Request, url: str) -> Response:
        note(request.host)
        return fetch(egress, request, url)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Egress, "tunnel", noted_tunnel)
        patch.setattr(Egress, "fetch", noted_fetch)
        way_out = _WayOut()
        way_out.start()
        proxy = f"http://127.0.0.1:{way_out.port}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
        variables = dict.fromkeys(names, proxy)
        variables |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        # npm would wait for 70 seconds to ask twice more.
        variables["npm_config_fetch_retries"] = "0"
        try:
            yield hosts, variables
        finally:
            way_out.stop()


def configured_indexes() -> set[str]:
    """Return the hosts that the settings of pip, uv, Pulumi, npm and Go name, and pip's own."""
    names = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "TPUSTACK_PULUMI_RELEASES")
    urls = [os.environ.get(name, "") for name in names]
    urls += re.split("[,|]", os.environ.get("GOPROXY", ""))
    if npm := shutil.which("npm"):
        # Its setting may be in a file of the person's or of the machine's.
        words = [npm, "config", "get", "registry"]
        urls.append(
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        )
    hosts = {urlsplit(url).hostname for url in urls} | {PyPI.netloc, PyPI.file_storage_domain}
    return {host for host in hosts if host}
