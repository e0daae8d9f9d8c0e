"""What goes wrong on request: what runs or is in buckets is broken, resources run out.

Machines and TPUs are named as people call them, and objects as BUCKET/NAME; `*` and `?` stand for
any text. Scarcity and refusals are settings: records of the store's kind `setting`, checked here
and read by the modules that they concern.
"""

import contextlib
import re
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from localcloud.core import SETTING, ApiError, Cloud, invalid
from localcloud.core.call import TOKENS, Json
from localcloud.core.cloud import Fault
from localcloud.machines import processes
from localcloud.services import aiplatform, federation
from localcloud.services.compute import instances
from localcloud.services.storage import records, versions
from localcloud.services.tpu import api, catalog, hosts, nodes

_HOSTS = "/hosts/"


def put(cloud: Cloud, what: str, sent: Json) -> None:
    """Break what `sent` names; 400 naming all that can be broken for an unknown `what`."""
    if what not in _BREAKABLE:
        raise invalid(f"{what!r} can't be broken. Choose from: {', '.join(_BREAKABLE)}")
    _BREAKABLE[what](cloud, sent["name"], sent)


def _preempt(cloud: Cloud, name: str, sent: Json) -> None:
    """Take TPUs away, or running VMs where no TPU has that name."""
    tpus = [key for key in cloud.store.keys(api.NODE) if _called(key, name)]
    for key in tpus:
        nodes.preempt(cloud, key)
    vms = [] if tpus else _running(cloud, name)
    for key in vms:
        if _HOSTS not in key:
            instances.preempt(cloud, key)


def _die(cloud: Cloud, name: str, sent: Json) -> None:
    """Let TPUs be dead while the API keeps saying READY, as in tensorflow/tpu#609."""
    for key in _named(cloud.store.keys(api.NODE), name):
        hosts.halt(cloud, nodes.load_present(cloud, key))


def _hang(cloud: Cloud, name: str, sent: Json) -> None:
    """Let machines or TPUs stand still, as a kernel that hangs does, or continue.

    A client's connection is taken and never answered.
    """
    for key in _running(cloud, name):
        processes.send(cloud.machines.guests(key), signal.SIGSTOP if sent["on"] else signal.SIGCONT)


def _kill(cloud: Cloud, name: str, sent: Json) -> None:
    """Kill processes whose command line the regular expression finds; 400 where none runs."""
    keys, pattern = _running(cloud, name), sent["process"]
    found = [pid for key in keys for pid in cloud.machines.guests(key) if _runs(pid, pattern)]
    if not found:
        raise invalid(f"no process of {name} has a command line with {pattern!r}")
    processes.send(found, signal.SIGKILL)


def _fill_disk(cloud: Cloud, name: str, sent: Json) -> None:
    """Let disks be full, or as before; what full means on this computer: `processes.fill_disk`."""
    for key in _running(cloud, name):
        cloud.machines.fill_disk(key, sent["on"])


def _expire_tokens(cloud: Cloud, name: str, sent: Json) -> None:
    """Let all tokens be expired that machines have got by now; new ones are good."""
    expired = dict.fromkeys(_running(cloud, name), cloud.clock.now())
    with cloud.store.locked():
        cloud.store.put(SETTING, TOKENS, cloud.setting(TOKENS) | expired)


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
        raise invalid(f"there is no object {name}")


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


# Calls that fail: a fault as people send it, checked before it is in force.

_FAULT: dict[str, type] = {name: type(value) for name, value in asdict(Fault("")).items()}


def fault_problems(sent: Any) -> list[str]:
    """Return all that is wrong with a fault of calls."""
    return field_problems(sent, _FAULT, {"method"}) or Fault(**sent).problems()


def field_problems(
    sent: Any, wanted: Mapping[str, type], least: Collection[str] | None = None
) -> list[str]:
    """Return what is wrong with a mapping's names and types; `least` (all) must be there."""
    least = wanted.keys() if least is None else {*least}
    if not isinstance(sent, dict):
        return [f"expected {', '.join(sorted(least))}, not {sent!r}"]
    found = [f"unknown {name!r}, known: {', '.join(wanted)}" for name in sent.keys() - wanted]
    found += [f"{name} is missing" for name in least - sent.keys()]
    for name in sent.keys() & wanted:
        # A bool is an int to isinstance, but not here.
        good = (float, int) if wanted[name] is float else (wanted[name],)
        if type(sent[name]) not in good:
            found.append(f"{name}: {sent[name]!r} is not of type {wanted[name].__name__}")
    return sorted(found)


# Settings: they last until they are taken back, also over a restart of the emulator.


def change_setting(cloud: Cloud, name: str, value: Json) -> None:
    """Change the parts of a setting that `value` names.

    Raises ApiError: 400 naming all that is wrong with the name or value.
    """
    if name not in _SETTINGS:
        raise invalid(f"unknown setting {name}; there are {', '.join(_SETTINGS)}")
    if found := setting_problems(name, value):
        raise invalid(f"setting {name}: " + "; ".join(found))
    with cloud.store.locked():
        cloud.store.put(SETTING, name, cloud.setting(name) | value)


def setting_problems(name: str, value: Json) -> list[str]:
    """Return all that is wrong with the value of a setting."""
    setting, wrong = _SETTINGS[name], []
    for part, one in value.items():
        if not setting.is_part(part):
            wrong.append(f"{part!r} is not {setting.part}")
        if not setting.is_value(one):
            wrong.append(f"{part}: {one!r} is not {setting.value}")
    return wrong


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


@dataclass(frozen=True)
class Setting:
    """What a setting may be: each of its parts is one of `part`, each value one of `value`."""

    part: str
    is_part: Callable[[str], bool]
    value: str
    is_value: Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_types(value: Any) -> bool:
    # `*` stands for all, as the name of a zone, too.
    known = ("*", *catalog.accelerators())
    return _is_list(value) and all(one in known for one in value)


def _is_tpu_quota(metric: str) -> bool:
    tpus = catalog.accelerators().values()
    known = {one.metric(preemptible=spot) for one in tpus for spot in (False, True)}
    return metric in known | aiplatform.quota_metrics()


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_limits(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_whole, value.values()))


def _has_keys(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("keys"), list)


_COUNT = "a whole number that is not negative"
_switch = Setting("'on'", "on".__eq__, "true or false", lambda value: isinstance(value, bool))
# What reports disagree about, or no source shows, is a switch, so that a test can run either way;
# the README says which. Tests put further settings into the store, unchecked.
_SETTINGS = {
    "ai-zones": _switch,
    "compute.quota": Setting("'CPUS'", "CPUS".__eq__, "limits by region", _are_limits),
    "compute.stockout": Setting("'zones'", "zones".__eq__, "a list", _is_list),
    "deny-tpu-nodes": _switch,
    "grpc": Setting("'deaf'", "deaf".__eq__, "a list", _is_list),
    federation.ISSUERS: Setting("an issuer", bool, "an object with `keys`, as in JWKS", _has_keys),
    "quota": Setting("a TPU quota", _is_tpu_quota, _COUNT, _whole),
    "stockout": Setting(
        "a zone with TPUs",
        lambda zone: zone in ("*", *catalog.zones()),
        "a list of accelerator types, or ['*']",
        _are_types,
    ),
    "tpu-hosts": Setting("'limit'", "limit".__eq__, _COUNT, _whole),
    "vertex-quota-project": _switch,
}
