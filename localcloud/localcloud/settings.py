"""The switches for scarcity and refusal, checked before they are stored.

A setting is a record of the store's kind `setting`, read by the modules that it concerns.
"""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.call import TOKENS, Json
from localcloud.core.cloud import SETTING, Cloud
from localcloud.core.errors import invalid
from localcloud.services import aiplatform as training_pools
from localcloud.services.compute import catalog as compute_catalog
from localcloud.services.federation import ISSUERS
from localcloud.services.tpu import catalog as tpu_catalog

Check = Callable[[Json], "list[str]"]


def all_of(cloud: Cloud) -> dict[str, Json]:
    """Return the settings that are set, by name."""
    return dict(cloud.store.items(SETTING))


def change(cloud: Cloud, name: str, value: Json) -> None:
    """Change the parts of a setting that `value` names.

    Raises:
        ApiError: 400 naming all that is wrong with the name or value.
    """
    if name not in _CHECKS:
        raise invalid(f"unknown setting {name}; there are {', '.join(sorted(_CHECKS))}")
    if found := problems(name, value):
        raise invalid(f"setting {name}: " + "; ".join(found))
    with cloud.store.locked():
        cloud.store.put(SETTING, name, cloud.setting(name) | value)


def problems(name: str, value: Json) -> list[str]:
    """Return all that is wrong with the value of a setting."""
    return _CHECKS[name](value)


def forget(cloud: Cloud, name: str, part: str) -> None:
    """Take one part of a setting back."""
    with cloud.store.locked():
        left = {key: value for key, value in cloud.setting(name).items() if key != part}
        if left:
            cloud.store.put(SETTING, name, left)
        else:
            cloud.store.delete(SETTING, name)


def clear(cloud: Cloud) -> None:
    """Take all settings back."""
    for name in cloud.store.keys(SETTING):
        cloud.store.delete(SETTING, name)


def _types_by_zone(value: Json) -> list[str]:
    problems = []
    for zone, types in value.items():
        if zone not in ("*", *tpu_catalog.zones()):
            problems.append(f"{zone!r} is no zone with TPUs ({', '.join(tpu_catalog.zones())})")
        if not isinstance(types, list):
            problems.append(f"the value of {zone} must be a list of accelerator types, or ['*']")
            continue
        unknown = [name for name in types if name != "*" and name not in tpu_catalog.accelerators()]
        problems += [f"{name!r} is no accelerator type" for name in unknown]
    return problems


def _limits(value: Json) -> list[str]:
    known = {
        accelerator.metric(preemptible=preemptible)
        for accelerator in tpu_catalog.accelerators().values()
        for preemptible in (False, True)
    }
    known |= training_pools.quota_metrics()
    return [
        f"{metric!r} is no TPU quota, those are {', '.join(sorted(known))}"
        for metric in value
        if metric not in known
    ] + _whole(value)


def _whole(value: Json) -> list[str]:
    return [
        f"{name} must be a whole number that is not negative, not {limit!r}"
        for name, limit in value.items()
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0
    ]


def _only(*names: str) -> Check:
    def check(value: Json) -> list[str]:
        return [f"unknown {name!r}, known: {', '.join(names)}" for name in value.keys() - {*names}]

    return check


def _switch(value: Json) -> list[str]:
    problems = _only("on")(value)
    if not isinstance(value.get("on", False), bool):
        problems.append(f"on must be true or false, not {value['on']!r}")
    return problems


def _zones(value: Json) -> list[str]:
    problems = _only("zones")(value)
    zones = value.get("zones", [])
    known = compute_catalog.zones()
    problems += [f"{zone!r} is no zone" for zone in zones if zone != "*" and zone not in known]
    return problems


def _cpus(value: Json) -> list[str]:
    return _only("CPUS")(value) + _whole(value.get("CPUS", {}))


def _seconds(value: Json) -> list[str]:
    return _only("stop", "preempt")(value) + _whole(value)


def _moments(value: Json) -> list[str]:
    return [
        f"the moment of {machine} must be seconds since the epoch, not {moment!r}"
        for machine, moment in value.items()
        if isinstance(moment, bool) or not isinstance(moment, (int, float))
    ]


def _hosts(value: Json) -> list[str]:
    return _only("limit")(value) + _whole(value)


def _issuers(value: Json) -> list[str]:
    return [
        f"the value of {issuer} must be a JSON Web Key Set, an object with `keys`"
        for issuer, keys in value.items()
        if not isinstance(keys, dict) or not isinstance(keys.get("keys"), list)
    ]


_CHECKS: dict[str, Check] = {
    "ai-zones": _switch,
    "compute.quota": _cpus,
    "compute.stockout": _zones,
    "deny-tpu-nodes": _switch,
    "grace": _seconds,
    "grpc": _only("deaf"),
    ISSUERS: _issuers,
    "quota": _limits,
    "reservations": _types_by_zone,
    "stockout": _types_by_zone,
    TOKENS: _moments,
    "tpu-firewall": _switch,
    "tpu-hosts": _hosts,
    "vertex-quota-project": _switch,
}
