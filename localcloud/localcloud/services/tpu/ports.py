"""Where the hosts of TPUs listen: 8470 as on Google where that is free, else another port."""

from __future__ import annotations

import socket

from localcloud.core.cloud import Cloud
from localcloud.services.tpu.api import NODE

ADDRESS = "127.0.0.1"
STANDARD = 8470


def choose(cloud: Cloud, count: int, wish: list[int]) -> list[int]:
    """Return free ports for `count` hosts.

    Args:
        cloud: the cloud, whose nodes keep their ports.
        count: how many.
        wish: the ports that the hosts had before, in order.
    """
    taken = {
        endpoint["port"]
        for _, node in cloud.store.items(NODE)
        for endpoint in node.get("networkEndpoints", [])
    } - set(wish)
    chosen: list[int] = []
    for index in range(count):
        candidates = [*wish[index : index + 1], STANDARD]
        free = (p for p in candidates if p not in taken and p not in chosen and _free(p))
        chosen.append(next(free, None) or _any_free(taken | set(chosen)))
    return chosen


def _free(port: int) -> bool:
    # Without SO_REUSEADDR or SO_REUSEPORT, on the wildcard as TensorFlow's server does.
    if socket.has_ipv6 and _binds(socket.AF_INET6, "::", 0):
        return _binds(socket.AF_INET6, "::", port)
    return _binds(socket.AF_INET, "", port)


def _binds(family: socket.AddressFamily, wildcard: str, port: int) -> bool:
    try:
        with socket.socket(family) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind((wildcard, port))
    except OSError:
        return False
    return True


def _any_free(taken: set[int]) -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
