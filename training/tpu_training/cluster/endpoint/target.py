"""Find out which TPU the argument or the platform's environment variables name.

The first of these that is set counts: `--tpu`, TPU_GRPC_URL (Paperspace), TPU_NAME (Cloud TPU,
Google Kubernetes Engine), TPU_CONFIG (AI Platform: JSON with tpu_node_name, project, zone),
COLAB_TPU_ADDR (Colab), KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS (Google Kubernetes Engine). TensorFlow's own
resolver reads neither TPU_GRPC_URL nor COLAB_TPU_ADDR.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tpu_training.errors import InputError

DEFAULT_PORT = 8470
SCHEME = "grpc://"

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_FULL_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/nodes/([^/]+)")
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?)(:(?P<port>[0-9]{1,5}))?")
_ADDRESS_VARIABLES = ("COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
# In order of precedence.
VARIABLES = ("TPU_GRPC_URL", "TPU_NAME", "TPU_CONFIG", *_ADDRESS_VARIABLES)


@dataclass(frozen=True)
class Addresses:
    """The workers' `host:port` in worker order, and the setting that named them.

    `tensorflow` is their version as reported by the Cloud TPU API, if it was asked. `look_up` asks
    it again: a TPU that was made anew has other addresses.
    """

    addresses: tuple[str, ...]
    source: str
    tensorflow: str | None = None
    look_up: "Callable[[], Addresses] | None" = field(default=None, compare=False, repr=False)

    @property
    def url(self) -> str:
        """The workers in the form of TensorFlow's resolver: `grpc://A:P,grpc://B:P`."""
        return ",".join(SCHEME + address for address in self.addresses)


@dataclass(frozen=True)
class NamedTpu:
    """A TPU to look up through the Cloud TPU API; project and zone may be unknown yet."""

    name: str
    project: str | None
    zone: str | None
    source: str


@dataclass(frozen=True)
class LocalTpu:
    """The TPU of the machine that this process runs on (a TPU VM), and why it was chosen."""

    source: str
    reason: str


@dataclass(frozen=True)
class NoTpu:
    """No setting names a TPU."""


Target = Addresses | NamedTpu | LocalTpu | NoTpu


def find_target(
    tpu: str | None, project: str | None, zone: str | None, environ: Mapping[str, str]
) -> Target:
    """Return the target that the argument `tpu` or the first set environment variable names.

    Raises:
        InputError: The value is neither a name nor an address; the message names the setting.
    """
    project = project or environ.get("TPU_PROJECT") or None
    zone = zone or environ.get("TPU_ZONE") or None
    if tpu:
        return _parse(tpu, project, zone, "--tpu")
    if url := environ.get("TPU_GRPC_URL"):
        return Addresses(_parse_addresses(url, "TPU_GRPC_URL"), "TPU_GRPC_URL")
    if name := environ.get("TPU_NAME"):
        return _parse(name, project, zone, "TPU_NAME")
    if config := environ.get("TPU_CONFIG"):
        return _parse_tpu_config(config, project, zone)
    for variable in _ADDRESS_VARIABLES:
        if value := environ.get(variable):
            return Addresses(_parse_addresses(value, variable), variable)
    return NoTpu()


def _parse(value: str, project: str | None, zone: str | None, source: str) -> Target:
    """Distinguish names from addresses, which have a scheme, a dot, a colon or a comma."""
    value = value.strip()
    if value == "local":
        return LocalTpu(source, f"{source} says local")
    if full := _FULL_NAME.fullmatch(value):
        project, zone, value = full.groups()
    if _NAME.fullmatch(value):
        return NamedTpu(value, project, zone, source)
    return Addresses(_parse_addresses(value, source), source)


def _parse_addresses(value: str, source: str) -> tuple[str, ...]:
    addresses = tuple(_parse_address(part.strip(), source) for part in value.split(","))
    if repeated := sorted({address for address in addresses if addresses.count(address) > 1}):
        raise InputError(f"{source}={value!r} names the worker {repeated[0]} more than once")
    return addresses


def _parse_address(value: str, source: str) -> str:
    match = _ADDRESS.fullmatch(value.removeprefix(SCHEME).removesuffix("/"))
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise InputError(
            f"{source}: {value!r} is neither a TPU's name nor an address; expected a name such as "
            f"my-tpu, {SCHEME}HOST:PORT, several of them with commas between, or local"
        )
    return f"{match['host']}:{port}"


def _parse_tpu_config(value: str, project: str | None, zone: str | None) -> Target:
    expected = '{"tpu_node_name": NAME, "project": PROJECT, "zone": ZONE}'
    try:
        config = json.loads(value)
    except json.JSONDecodeError as error:
        raise InputError(f"TPU_CONFIG is not JSON ({error}); expected {expected}") from error
    name = config.get("tpu_node_name") if isinstance(config, dict) else None
    if not isinstance(name, str) or not name:
        raise InputError(f"TPU_CONFIG={value!r} has no tpu_node_name; expected {expected}")
    return _parse(name, project or config.get("project"), zone or config.get("zone"), "TPU_CONFIG")
