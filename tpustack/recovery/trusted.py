"""Refuses a state in which somebody has put what would run, or would lead credentials elsewhere.

Whoever can write a state can put three such things into it, all of which the engine obeys before
this project's program has said a word: a pickle (`__provider`), the name and address of a plugin to
download and run, and the address of an API, which gets the deployer's token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from tpustack.errors import TpustackError

# What this project's programs are made with. A plugin runs as whoever starts the engine.
_PACKAGES = ("gcp", "pulumi-python")
_DYNAMIC = "pulumi-python"
_PROVIDER_TYPE = "pulumi:providers:"
# Where the engine finds another name, address or parameter of a plugin:
# pulumi/pkg/resource/deploy/providers/registry.go.
_PLUGIN = (
    "__internal",
    "envVarMappings",
    "name",
    "parameterization",
    "pluginChecksums",
    "pluginDownloadURL",
)
_PICKLE = "__provider"
Resource = Mapping[str, Any]


def require_trusted(stack: str, state: Mapping[str, Any]) -> None:
    """Refuse a state that would run something which is not of this checkout.

    Args:
        stack: the stack's name.
        state: the whole state, as the engine exports it.

    Raises:
        TpustackError: with everything that is wrong.
    """
    if problems := list(_problems(state.get("deployment") or {})):
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise TpustackError(
            f"the state of stack {stack} is not trusted, and nothing was done with it:\n{lines}\n"
            "Somebody may have changed it. Put an earlier one back (docs/gitops.md), or use the "
            "release that deployed the stack last (docs/threat-model.md)"
        )


def _problems(deployment: Any) -> Iterator[str]:
    try:
        begun = [each["resource"] for each in deployment.get("pending_operations") or []]
        for resource in [*(deployment.get("resources") or []), *begun]:
            urn = str(resource["urn"])
            # The engine goes by the type in the URN here, and by the other one there.
            for kind in {str(resource["type"]), urn.split("::")[2].rpartition("$")[2]}:
                # A name may have lines of its own.
                yield from (f"{urn.rpartition('::')[2]!r}: {each}" for each in _of(kind, resource))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        yield f"it is not as the engine writes it ({error!r})"


def _of(kind: str, resource: Resource) -> Iterator[str]:
    if kind.startswith(_PROVIDER_TYPE):
        return _of_provider(kind.removeprefix(_PROVIDER_TYPE), resource.get("inputs") or {})
    return _of_resource(kind.partition(":")[0], resource)


def _of_provider(package: str, inputs: Mapping[str, Any]) -> Iterator[str]:
    if package not in _PACKAGES:
        yield f"the plugin {package!r} would be run; this project uses {' and '.join(_PACKAGES)}"
    for key in _PLUGIN:
        if inputs.get(key):
            yield f"{key} says which plugin to run, which this project leaves to Pulumi"
    for key, value in inputs.items():
        if key.lower().endswith("customendpoint") and not _is_googles(value):
            yield f"{key} would send Google's token to {value!r}, which is not Google's"
    if inputs.get("universeDomain", "googleapis.com") != "googleapis.com":
        yield f"universeDomain would send Google's token to {inputs['universeDomain']!r}"


def _is_googles(url: object) -> bool:
    address = urlsplit(str(url))
    host = address.hostname or ""
    return address.scheme == "https" and host.endswith(".googleapis.com")


def _of_resource(package: str, resource: Resource) -> Iterator[str]:
    pickles = [
        properties[_PICKLE]
        for properties in (resource.get("inputs") or {}, resource.get("outputs") or {})
        if _PICKLE in properties
    ]
    if not pickles and package != _DYNAMIC:
        return
    known = _known()
    if not pickles or any(str(pickle) not in known for pickle in pickles):
        yield "its dynamic provider is not one of this checkout, byte for byte"


def _known() -> frozenset[str]:
    # Pulumi's SDK takes a second to import.
    from infra.resources.provider import known

    return frozenset(known())
