"""Breaks what runs and what lies in buckets: machines, tokens, objects.

Machines and TPUs are named as people call them, and objects as BUCKET/NAME; `*` and `?` stand for
any text, so that who writes it down need not know names that are made up later.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from localcloud.admin import settings
from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.tokens import TOKENS
from localcloud.services.compute import instances
from localcloud.services.storage import records, versions
from localcloud.services.tpu import hosts, nodes
from localcloud.services.tpu.api import NODE

_HOSTS = "/hosts/"


def preemptions(cloud: Cloud, name: str) -> list[Callable[[], object]]:
    """Return what takes TPUs and running VMs of that name away, TPUs before VMs.

    Raises:
        ApiError: 400 when it is off, 404 when nothing is called so.
    """
    tpus = [key for key in cloud.store.keys(NODE) if _called(key, name)]
    if tpus:
        return [partial(nodes.preempt, cloud, key) for key in tpus]
    vms = [key for key in _machines(cloud, name) if _HOSTS not in key]
    return [partial(instances.preempt, cloud, key) for key in vms]


def die(cloud: Cloud, name: str) -> None:
    """Let TPUs be dead while the API goes on saying READY, as in tensorflow/tpu#609."""
    for key in _tpus(cloud, name):
        hosts.halt(cloud, nodes.load_present(cloud, key))


def hang(cloud: Cloud, name: str, on: bool) -> None:
    """Let machines or TPUs stand still, as a kernel that hangs does, or go on.

    A client's connection is taken, and nobody answers.
    """
    for key in _machines(cloud, name):
        _signal(cloud.machines.guests(key), signal.SIGSTOP if on else signal.SIGCONT)


def kill(cloud: Cloud, name: str, pattern: str) -> None:
    """Kill the processes of machines whose command line the regular expression finds.

    Raises:
        ApiError: 400 when none runs there.
    """
    keys = _machines(cloud, name)
    found = [pid for key in keys for pid in cloud.machines.guests(key) if _runs(pid, pattern)]
    if not found:
        raise invalid(f"no process of {name} has a command line with {pattern!r}")
    _signal(found, signal.SIGKILL)


def fill_disk(cloud: Cloud, name: str, on: bool) -> None:
    """Let the disk of machines be full, or as before."""
    for key in _machines(cloud, name):
        cloud.machines.fill_disk(key, on)


def expire_tokens(cloud: Cloud, name: str) -> None:
    """Let all tokens be expired that machines have got by now; new ones are good."""
    settings.change(cloud, TOKENS, dict.fromkeys(_machines(cloud, name), cloud.clock.now()))


def objects(cloud: Cloud, pattern: str) -> list[str]:
    """Return the live objects that fit, as BUCKET/NAME."""
    return [f"{version.bucket}/{version.name}" for version in _versions(cloud, pattern)]


def delete_objects(cloud: Cloud, pattern: str) -> None:
    """Delete live objects, as somebody does who must not.

    Raises:
        ApiError: 400 when none fits.
    """
    with cloud.store.locked():
        found = _versions(cloud, pattern)
        for version in found:
            versions.delete(cloud, records.require_bucket(cloud, version.bucket), version)
    if not found:
        raise invalid(f"no object is called {pattern}")


def handlers(cloud: Cloud) -> dict[str, Callable[[Json], object]]:
    """Return what can be broken, by name; each takes what was sent."""
    return {
        "preempt": lambda sent: [action() for action in preemptions(cloud, sent["name"])],
        "dead": lambda sent: die(cloud, sent["name"]),
        "hang": lambda sent: hang(cloud, sent["name"], sent["on"]),
        "kill": lambda sent: kill(cloud, sent["name"], sent["process"]),
        "full-disk": lambda sent: fill_disk(cloud, sent["name"], sent["on"]),
        "expire-tokens": lambda sent: expire_tokens(cloud, sent["name"]),
        "delete-objects": lambda sent: delete_objects(cloud, sent["name"]),
    }


def named(cloud: Cloud, pattern: str) -> list[str]:
    """Return the VMs and TPU hosts of that name, on or off."""
    return [key for key in cloud.store.keys("machine") if _called(key, pattern)]


def _machines(cloud: Cloud, name: str) -> list[str]:
    keys = named(cloud, name)
    running = [key for key in keys if cloud.machines.running(key)]
    if keys and not running:
        raise invalid(f"{keys[0]} is off: only what runs can fail")
    if not running:
        raise _unknown(name, cloud.store.keys("machine"))
    return running


def _tpus(cloud: Cloud, name: str) -> list[str]:
    known = cloud.store.keys(NODE)
    found = [key for key in known if _called(key, name)]
    if not found:
        raise _unknown(name, known)
    return found


def _unknown(name: str, known: list[str]) -> ApiError:
    return ApiError(404, f"no machine is called {name}; there are: {', '.join(known) or 'none'}")


def _called(key: str, pattern: str) -> bool:
    """Return whether a VM, a TPU or its host is meant, by its name or in full."""
    whole = key.partition(_HOSTS)[0]
    names = key, whole, whole.rpartition("/")[2]
    return f"/{pattern}/" in f"/{key}/" or any(fnmatchcase(name, pattern) for name in names)


def _versions(cloud: Cloud, pattern: str) -> list[records.Version]:
    wanted = pattern.removeprefix("gs://")
    return [
        records.Version(**record)
        for bucket in records.all_buckets(cloud)
        for name, record in cloud.store.items(records.live_kind(bucket.name))
        if fnmatchcase(f"{bucket.name}/{name}", wanted)
    ]


def _runs(pid: int, pattern: str) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return re.search(pattern, b" ".join(words).decode(errors="replace")) is not None
    return False


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
