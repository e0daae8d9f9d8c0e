"""What goes wrong on request: what runs or is in buckets is broken, resources run out.

Machines and TPUs are named as people call them, and objects as BUCKET/NAME; `*` and `?` stand for
any text. Scarcity and refusals are settings: records of the store's kind `setting`, checked here
and read by the modules that they concern.
"""

import contextlib
import os
import re
import signal
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from localcloud.core.call import TOKENS, Json
from localcloud.core.cloud import SETTING, Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services import aiplatform, federation
from localcloud.services.compute import catalog as compute_catalog
from localcloud.services.compute import instances
from localcloud.services.storage import records, versions
from localcloud.services.tpu import catalog, hosts, nodes
from localcloud.services.tpu.api import NODE

_HOSTS = "/hosts/"
Check = Callable[[Json], "list[str]"]


def preemptions(cloud: Cloud, name: str) -> list[Callable[[], object]]:
    """Return what takes TPUs and running VMs of that name away, TPUs before VMs.

    Raises ApiError: 400 when it is off, 404 when nothing is called so.
    """
    tpus = [key for key in cloud.store.keys(NODE) if _called(key, name)]
    if tpus:
        return [partial(nodes.preempt, cloud, key) for key in tpus]
    vms = [key for key in _running(cloud, name) if _HOSTS not in key]
    return [partial(instances.preempt, cloud, key) for key in vms]


def put(cloud: Cloud, what: str, sent: Json) -> None:
    """Break what `sent` names; 400 naming all that can be broken for an unknown `what`."""
    if what not in _BREAKABLE:
        raise invalid(f"{what!r} can't be broken; {', '.join(_BREAKABLE)} can")
    _BREAKABLE[what](cloud, sent["name"], sent)


def _preempt(cloud: Cloud, name: str, sent: Json) -> None:
    for action in preemptions(cloud, name):
        action()


def _die(cloud: Cloud, name: str, sent: Json) -> None:
    """Let TPUs be dead while the API keeps saying READY, as in tensorflow/tpu#609."""
    for key in _named(cloud.store.keys(NODE), name):
        hosts.halt(cloud, nodes.load_present(cloud, key))


def _hang(cloud: Cloud, name: str, sent: Json) -> None:
    """Let machines or TPUs stand still, as a kernel that hangs does, or continue.

    A client's connection is taken and never answered.
    """
    for key in _running(cloud, name):
        _signal(cloud.machines.guests(key), signal.SIGSTOP if sent["on"] else signal.SIGCONT)


def _kill(cloud: Cloud, name: str, sent: Json) -> None:
    """Kill processes whose command line the regular expression finds; 400 where none runs."""
    keys, pattern = _running(cloud, name), sent["process"]
    found = [pid for key in keys for pid in cloud.machines.guests(key) if _runs(pid, pattern)]
    if not found:
        raise invalid(f"no process of {name} has a command line with {pattern!r}")
    _signal(found, signal.SIGKILL)


def _fill_disk(cloud: Cloud, name: str, sent: Json) -> None:
    """Let disks be full, or as before; what full means on this computer: `processes.fill_disk`."""
    for key in _running(cloud, name):
        cloud.machines.fill_disk(key, sent["on"])


def _expire_tokens(cloud: Cloud, name: str, sent: Json) -> None:
    """Let all tokens be expired that machines have got by now; new ones are good."""
    change_setting(cloud, TOKENS, dict.fromkeys(_running(cloud, name), cloud.clock.now()))


def objects(cloud: Cloud, pattern: str) -> list[str]:
    """Return the live objects that fit, as BUCKET/NAME."""
    return [f"{version.bucket}/{version.name}" for version in _versions(cloud, pattern)]


def _delete_objects(cloud: Cloud, name: str, sent: Json) -> None:
    """Delete live objects, as a user does by mistake; 400 when none fits."""
    with cloud.store.locked():
        found = _versions(cloud, name)
        for version in found:
            versions.delete(cloud, records.require_bucket(cloud, version.bucket), version)
    if not found:
        raise invalid(f"no object is called {name}")


_BREAKABLE: dict[str, Callable[[Cloud, str, Json], None]] = {
    "preempt": _preempt,
    "dead": _die,
    "hang": _hang,
    "kill": _kill,
    "full-disk": _fill_disk,
    "expire-tokens": _expire_tokens,
    "delete-objects": _delete_objects,
}


def require_machines(cloud: Cloud, pattern: str) -> list[str]:
    """Return the VMs and TPU hosts of that name, on or off; 404 if there are none."""
    return _named(cloud.store.keys("machine"), pattern)


def _running(cloud: Cloud, pattern: str) -> list[str]:
    keys = require_machines(cloud, pattern)
    running = [key for key in keys if cloud.machines.running(key)]
    if not running:
        raise invalid(f"{keys[0]} is off: only what runs can fail")
    return running


def _named(known: list[str], pattern: str) -> list[str]:
    found = [key for key in known if _called(key, pattern)]
    if not found:
        listed = ", ".join(known) or "none"
        raise ApiError(404, f"no machine is called {pattern}; there are: {listed}")
    return found


def _called(key: str, pattern: str) -> bool:
    """Return whether a VM, a TPU or its host is meant, by its name or in full.

    A pattern is also compared with what is between slashes, so that `TPU` means all of its hosts.
    """
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
    """Return whether a process has a command line that the regular expression finds."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return re.search(pattern, b" ".join(words).decode(errors="replace")) is not None
    return False


def _signal(pids: list[int], number: int) -> None:
    # Each by its own id: units are sessions of their own, so that no group has them all.
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


# Settings: they last until they are taken back, also over a restart of the emulator.


def all_settings(cloud: Cloud) -> dict[str, Json]:
    """Return the settings that are set, by name."""
    return dict(cloud.store.items(SETTING))


def change_setting(cloud: Cloud, name: str, value: Json) -> None:
    """Change the parts of a setting that `value` names.

    Raises ApiError: 400 naming all that is wrong with the name or value.
    """
    if name not in _CHECKS:
        raise invalid(f"unknown setting {name}; there are {', '.join(sorted(_CHECKS))}")
    if found := setting_problems(name, value):
        raise invalid(f"setting {name}: " + "; ".join(found))
    with cloud.store.locked():
        cloud.store.put(SETTING, name, cloud.setting(name) | value)


def setting_problems(name: str, value: Json) -> list[str]:
    """Return all that is wrong with the value of a setting."""
    return _CHECKS[name](value)


def forget_setting(cloud: Cloud, name: str, part: str) -> None:
    """Take one part of a setting back."""
    with cloud.store.locked():
        left = {key: value for key, value in cloud.setting(name).items() if key != part}
        if left:
            cloud.store.put(SETTING, name, left)
        else:
            cloud.store.delete(SETTING, name)


def clear(cloud: Cloud) -> None:
    """Lift all calls' faults and take all settings back; what is broken at once stays broken."""
    cloud.faults.clear()
    for name in cloud.store.keys(SETTING):
        cloud.store.delete(SETTING, name)


def _types_by_zone(value: Json) -> list[str]:
    # `*` stands for all zones as a name, and for all types in a list.
    problems = []
    zones, accelerators = catalog.zones(), catalog.accelerators()
    for zone, types in value.items():
        if zone not in ("*", *zones):
            problems.append(f"{zone!r} is not a zone with TPUs ({', '.join(zones)})")
        if not isinstance(types, list):
            problems.append(f"the value of {zone} must be a list of accelerator types, or ['*']")
            continue
        unknown = [name for name in types if name != "*" and name not in accelerators]
        problems += [f"{name!r} is not an accelerator type" for name in unknown]
    return problems


def _limits(value: Json) -> list[str]:
    accelerators, spot = catalog.accelerators().values(), (False, True)
    known = {each.metric(preemptible=preemptible) for each in accelerators for preemptible in spot}
    known |= aiplatform.quota_metrics()
    listed = ", ".join(sorted(known))
    wrong = [
        f"{each!r} is not a TPU quota, those are {listed}" for each in value if each not in known
    ]
    return wrong + _whole(value)


def _whole(value: Json) -> list[str]:
    return [
        f"{name} must be a whole number that is not negative, not {limit!r}"
        for name, limit in value.items()
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0
    ]


def _only(*names: str, check: Check = lambda value: []) -> Check:
    """Return a check of the parts' names, and of their values by `check`."""

    def checked(value: Json) -> list[str]:
        known = ", ".join(names)
        unknown = value.keys() - {*names}
        return [f"unknown {name!r}, known: {known}" for name in unknown] + check(value)

    return checked


def _on(value: Json) -> list[str]:
    on = value.get("on", False)
    return [] if isinstance(on, bool) else [f"on must be true or false, not {on!r}"]


def _zones(value: Json) -> list[str]:
    known = ("*", *compute_catalog.zones())
    return [f"{zone!r} is not a zone" for zone in value.get("zones", []) if zone not in known]


def _moments(value: Json) -> list[str]:
    return [
        f"the moment of {machine} must be seconds since the epoch, not {moment!r}"
        for machine, moment in value.items()
        if isinstance(moment, bool) or not isinstance(moment, (int, float))
    ]


def _issuers(value: Json) -> list[str]:
    return [
        f"the value of {issuer} must be a JSON Web Key Set, an object with `keys`"
        for issuer, keys in value.items()
        if not isinstance(keys, dict) or not isinstance(keys.get("keys"), list)
    ]


_switch = _only("on", check=_on)
# By name: what is wrong with a value. Settings about which reports disagree, or that no source
# shows, are switches, so that a test can run either way; the README says which.
_CHECKS: dict[str, Check] = {
    "ai-zones": _switch,
    "compute.stockout": _only("zones", check=_zones),
    "deny-tpu-nodes": _switch,
    "grace": _only("stop", "preempt", check=_whole),
    "grpc": _only("deaf"),
    federation.ISSUERS: _issuers,
    "quota": _limits,
    "reservations": _types_by_zone,
    "stockout": _types_by_zone,
    TOKENS: _moments,
    "tpu-hosts": _only("limit", check=_whole),
    "vertex-quota-project": _switch,
}
