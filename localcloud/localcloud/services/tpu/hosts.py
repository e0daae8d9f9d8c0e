"""The machines behind a TPU slice: one a host, with TensorFlow's gRPC server on it.

The hosts' addresses in the TPU's network exist on paper: a TPU VM's are of its subnetwork, a
classic node's of its own block. Clients reach all of them at `ADDRESS`.
"""

import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib.util import find_spec
from ipaddress import IPv4Network
from pathlib import Path

from localcloud.core import ApiError, Cloud, MachineSpec, Record, failed_precondition, projects
from localcloud.core.call import CLOUD_PLATFORM
from localcloud.machines import tpu_worker
from localcloud.services.compute import addresses
from localcloud.services.compute.api import STORE, last, path_from
from localcloud.services.tpu import catalog, checks
from localcloud.services.tpu.api import NODE, project_of, zone_of

_WORKER = Path(tpu_worker.__file__)
# Seconds from a host's boot until its worker must serve; TensorFlow takes one or two to load.
_PATIENCE = 60.0
_STEP = 0.02
_AT_ONCE = 16
ADDRESS = "127.0.0.1"
STANDARD = 8470
"""The port at which the hosts of Google's TPUs serve."""
# Google keeps the first two addresses of every range for itself.
_FIRST = 2


def require_tensorflow(record: Record) -> None:
    """Refuse a node whose hosts serve gRPC where TensorFlow, which serves it, is not installed.

    Raises ApiError: 400 naming the extra that brings it.
    """
    if serves(record) and find_spec("tensorflow") is None:
        raise failed_precondition(
            "the hosts of a local TPU are servers of TensorFlow, which is not installed with the "
            "local cloud: pip install 'tpu-stack-localcloud[tpu]' (in its repository `make setup`) "
            "and start it again"
        )


def boot(cloud: Cloud, record: Record) -> list[Record]:
    """Boot all hosts of a node, wait until they serve, and return their endpoints.

    Raises ApiError: 500 when a worker does not come up.
    """
    chosen = _reserve_ports(cloud, record)
    for index in range(_count(record)):
        _file(cloud, record, index, "port").unlink(missing_ok=True)
        shut(cloud, record, index, False)
        cloud.machines.boot(spec(cloud, record, index, chosen))
    if serves(record):
        chosen = [_await(cloud, record, index) for index in range(_count(record))]
    return [_endpoint(record, port) for port in chosen]


def endpoints(cloud: Cloud, record: Record) -> list[Record]:
    """Return where a node's hosts listen now: a restarted worker may have had to move.

    The port that it had may be taken by a process that does not belong to the local cloud.
    """
    known: list[Record] = record.get("networkEndpoints", [])
    if not serves(record):
        return known
    return [
        endpoint | {"port": _read(_file(cloud, record, index, "port")) or endpoint["port"]}
        for index, endpoint in enumerate(known)
    ]


def serves(record: Record) -> bool:
    """Return whether the node's hosts serve gRPC by themselves."""
    return "tensorflowVersion" in record or catalog.serves_grpc(record.get("runtimeVersion", ""))


def is_deaf(cloud: Cloud, record: Record) -> bool:
    """Return whether no other machine gets to its port, by the setting `grpc`.

    No source shows that TPU VMs with a runtime of these names let others in.
    """
    patterns = cloud.setting("grpc").get("deaf", [])
    return any(fnmatch(record.get("runtimeVersion", ""), pattern) for pattern in patterns)


def halt(cloud: Cloud, record: Record) -> None:
    """Stop all hosts; their files stay.

    In parallel, since each may take its grace period.
    """
    _each(record, cloud.machines.halt)


def remove(cloud: Cloud, record: Record) -> None:
    """Stop all hosts and delete their files."""
    _each(record, cloud.machines.remove)
    for index in range(_count(record)):
        _file(cloud, record, index, "port").unlink(missing_ok=True)
        shut(cloud, record, index, False)


def preempt(cloud: Cloud, record: Record) -> None:
    """Take all hosts away at once, as a preemption does."""
    _each(record, cloud.machines.preempt)


def update(cloud: Cloud, record: Record) -> None:
    """Tell all hosts of changed metadata, tags or labels.

    Running guests see them at their metadata server.
    """
    chosen = [endpoint["port"] for endpoint in record.get("networkEndpoints", [])]
    for index in range(_count(record)):
        cloud.machines.update(spec(cloud, record, index, chosen))


def shut(cloud: Cloud, record: Record, index: int, closed: bool) -> None:
    """Close or open the port of a host's worker; one that serves already notices soon.

    The file is read by the worker: the local cloud cannot filter packets without being root.
    """
    gate = _file(cloud, record, index, "shut")
    if closed:
        gate.touch()
    else:
        gate.unlink(missing_ok=True)


def keys(record: Record) -> list[str]:
    """Return the machines' keys, in worker order."""
    return [f"{record['name']}/hosts/{index}" for index in range(_count(record))]


def spec(cloud: Cloud, record: Record, index: int, chosen: list[int]) -> MachineSpec:
    """Return the machine of host `index`; its worker listens on `chosen[index]` if it can."""
    accelerator = catalog.accelerators()[record["acceleratorType"]]
    account = record["serviceAccount"]
    worker = [
        sys.executable,
        str(_WORKER),
        f"--port={chosen[index]}",
        f"--devices={accelerator.devices}",
        f"--ready={_file(cloud, record, index, 'port')}",
        f"--gate={_file(cloud, record, index, 'shut')}",
    ]
    classic = isinstance(account, str)
    interface = {"ip": ADDRESS, "network": record["_network"], "accessConfigs": []}
    return MachineSpec(
        key=keys(record)[index],
        project=project_of(record["name"]),
        zone=zone_of(record["name"]),
        name=f"t1v-n-{int(record['id']) & 0xFFFFFFFF:08x}-w-{index}",
        number=int(record["id"]) + index,
        machine_type=f"tpu-{record['acceleratorType']}",
        attributes=_attributes(record, index),
        service_account=account if classic else account["email"],
        scopes=(CLOUD_PLATFORM,) if classic else tuple(account["scope"]),
        tags=tuple(record.get("tags", [])),
        preemptible=checks.preemptible(record),
        daemons={"tpu-runtime": worker} if serves(record) else {},
        environment={"TF_CPP_MIN_LOG_LEVEL": "1"},
        programs=_programs(worker),
        details={"networkInterfaces": [interface]},
    )


# What libraries in the guest read of the TPU; `tpu-env` alone has all of it, a line a value.
def _attributes(record: Record, index: int) -> dict[str, str]:
    project, zone = project_of(record["name"]), zone_of(record["name"])
    # The address comes third on Google, behind two ids of the host.
    endpoints = ",".join([f"unknown:unknown:{ADDRESS}"] * _count(record))
    known = {
        "ACCELERATOR_TYPE": record["acceleratorType"],
        "CONSUMER_PROJECT_ID": project,
        "CONSUMER_PROJECT_NUMBER": projects.number(project),
        "NODE_ID": last(record["name"]),
        "RUNTIME_VERSION": record.get("runtimeVersion", ""),
        "TPU_TOPOLOGY": record["acceleratorConfig"]["topology"],
        "WORKER_ID": str(index),
        "WORKER_NETWORK_ENDPOINTS": endpoints,
        "ZONE": zone,
    }
    if "_slices" in record:
        # What a slice of several learns of the others, as JAX and libtpu read it.
        known["MEGASCALE_COORDINATOR_ADDRESS"] = ADDRESS
        known["MEGASCALE_NUM_SLICES"] = str(record["_slices"])
        known["MEGASCALE_SLICE_ID"] = str(record["_slice"])
    return {
        **record.get("metadata", {}),
        "accelerator-type": record["acceleratorType"],
        "agent-worker-number": str(index),
        "instance-id": last(record["name"]),
        "tpu-env": "".join(f"{name}: '{value}'\n" for name, value in known.items()),
        "worker-network-endpoints": endpoints,
    }


def _programs(worker: list[str]) -> dict[str, str]:
    # On Google the wheel tensorflow-tpu has these; they serve at the port that the API reports.
    command = " ".join(f"'{part}'" for part in worker)
    module = "-m tensorflow.python.tools.grpc_tpu_worker"
    return {
        "start_grpc_tpu_worker": f'exec {command} "$@"',
        "python3": f'case "$1 $2" in "{module}") shift 2; exec {command} "$@";; esac\n'
        f"exec '{sys.executable}' \"$@\"",
    }


def _reserve_ports(cloud: Cloud, record: Record) -> list[int]:
    # The record holds the ports from now on, so that no other node gets them while this one boots.
    with cloud.store.locked():
        wish = [endpoint["port"] for endpoint in record.get("networkEndpoints", [])]
        chosen = _choose_ports(cloud, _count(record), wish)
        current = cloud.store.get(NODE, record["name"])
        if current is not None:
            held = {
                "networkEndpoints": [_endpoint(record, port) for port in chosen],
                "_addresses": _reserve_addresses(cloud, current, _count(record)),
            }
            cloud.store.put(NODE, record["name"], current | held)
    return chosen


def _endpoint(record: Record, port: int) -> Record:
    endpoint: Record = {"ipAddress": ADDRESS, "port": port}
    if record.get("networkConfig", {}).get("enableExternalIps"):
        endpoint["accessConfig"] = {"externalIp": ADDRESS}
    return endpoint


def _await(cloud: Cloud, record: Record, index: int) -> int:
    # Wait in real time, even with a virtual clock: a process has to start.
    deadline = time.monotonic() + _PATIENCE
    ready = _file(cloud, record, index, "port")
    while time.monotonic() < deadline:
        port = _read(ready)
        if port:
            # The file stays when a worker dies; only a connection shows that it serves.
            with socket.create_connection((ADDRESS, port), timeout=_PATIENCE):
                return port
        if (cloud.store.get(NODE, record["name"]) or record)["state"] == "PREEMPTED":
            return STANDARD
        time.sleep(_STEP)
    log, _ = cloud.machines.serial(keys(record)[index])
    raise ApiError(500, f"TPU host {index} does not serve after {_PATIENCE:g} s: {log[-500:]}")


def _read(ready: Path) -> int:
    try:
        return int(ready.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0


def _file(cloud: Cloud, record: Record, index: int, kind: str) -> Path:
    """Return the file in which a worker writes its `port`, or that asks it to be `shut`."""
    return cloud.folder("tpu") / f"{record['id']}-{index}.{kind}"


def _count(record: Record) -> int:
    return catalog.accelerators()[record["acceleratorType"]].hosts


def _each(record: Record, action: Callable[[str], None]) -> None:
    with ThreadPoolExecutor(max_workers=min(_count(record), _AT_ONCE)) as pool:
        list(pool.map(action, keys(record)))


def _choose_ports(cloud: Cloud, count: int, wish: list[int]) -> list[int]:
    """Return free ports for `count` hosts.

    Args:
        cloud: the cloud, whose nodes keep their ports.
        count: how many.
        wish: the ports that the hosts had before, in order.
    """
    # Stopped nodes keep their ports: clients have them in their settings.
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


# The worker listens on both protocols at one socket, so the probe must not be IPv6 only.
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


def _reserve_addresses(cloud: Cloud, record: Record, count: int) -> list[str]:
    """Return the addresses of a node's hosts: those that it has, or new ones.

    Raises ApiError: 400 when its subnetwork has none left.
    """
    if "_addresses" in record:
        known: list[str] = record["_addresses"]
        return known
    if "cidrBlock" in record:
        block = IPv4Network(record["cidrBlock"])
        return [str(block[_FIRST + index]) for index in range(count)]
    for url in record["_uses"]:
        subnet = cloud.store.get(STORE, path_from(url))
        if subnet and "ipCidrRange" in subnet:
            return [addresses.reserve(cloud, subnet, record["name"]) for _ in range(count)]
    return []
