"""A TPU that really serves: its worker process, and TensorFlow as the client."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from localcloud import cli
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import CLOUD_PLATFORM, Principal
from localcloud.core.clock import Clock
from localcloud.core.cloud import DEVELOPER
from localcloud.machines import tpu_worker
from localcloud.services.oauth2 import refresh_token
from localcloud.services.tpu import nodes
from localcloud.testing import Client, machine
from tests.patience import until

pytestmark = pytest.mark.server

PARENT = "projects/tpu-stack-local/locations/us-central1-b"
HOST = f"{PARENT}/nodes/t/hosts/0"
V1 = f"tpu.googleapis.com/v1/{PARENT}"
V2 = f"tpu.googleapis.com/v2/{PARENT}"
ALPHA = f"tpu.googleapis.com/v2alpha1/{PARENT}"

_CLIENT = """
import sys
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(sys.argv[1])
tf.config.experimental_connect_to_cluster(resolver)
names = [d.name for d in tf.config.list_logical_devices("CPU") if "job:worker" in d.name]
strategy = tf.distribute.MirroredStrategy(devices=names)
with strategy.scope():
    weight = tf.Variable(1.0)
@tf.function
def step():
    def replica():
        total = tf.distribute.get_replica_context().all_reduce("SUM", weight)
        weight.assign(total)
    strategy.run(replica)
step()
print("endpoint", resolver.master())
print("replicas", strategy.num_replicas_in_sync, "weight", float(weight.numpy()))
"""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def running(local_cloud: LocalCloud) -> Iterator[Client]:
    local_cloud.cloud.store.put("setting", "grace", {"stop": 1.0, "preempt": 1.0})
    local_cloud.cloud.store.put("setting", "deny-tpu-nodes", {"on": False})
    yield Client(local_cloud)
    for key in [f"{PARENT}/nodes/{name}/hosts/0" for name in ("t", "u")]:
        local_cloud.cloud.machines.remove(key)


def run_client(local_cloud: LocalCloud, name: str) -> str:
    """Runs TensorFlow with nothing but the environment that `env` sets."""
    cloud = local_cloud.cloud
    credentials = {
        "project": "tpu-stack-local",
        "access_token": cloud.token(Principal(DEVELOPER)),
        "refresh_token": refresh_token(cloud),
    }
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **cli.variables_of(cloud.home, local_cloud.listener.port, credentials, {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, name],
        capture_output=True,
        text=True,
        timeout=120,
        env=variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def own_addresses() -> list[str]:
    """The address that packets to the outside would carry; none is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return []
        return [str(probe.getsockname()[0])]


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def test_tensorflow_finds_the_tpu_by_name_and_trains_on_eight_replicas(
    running: Client, local_cloud: LocalCloud
) -> None:
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
    assert running.post(f"{ALPHA}/nodes", body, nodeId="t")["done"] is True
    (endpoint,) = running.get(f"{V1}/nodes/t")["networkEndpoints"]
    said = run_client(local_cloud, "t").splitlines()
    assert said[0] == f"endpoint grpc://{endpoint['ipAddress']}:{endpoint['port']}"
    assert said[1] == "replicas 8 weight 8.0"
    log, _ = local_cloud.cloud.machines.serial(HOST)
    assert f"listening on port {endpoint['port']}" in log
    worker = [psutil.Process(pid) for pid in local_cloud.cloud.machines.pids(HOST)]
    assert worker
    grace = 300.0
    local_cloud.cloud.store.put("setting", "grace", {"preempt": grace})
    begun = time.monotonic()
    nodes.preempt(local_cloud.cloud, f"{PARENT}/nodes/t")
    # It ended by itself: it would have been killed after the grace.
    assert time.monotonic() - begun < grace
    # Its port may be another test's by now.
    assert not any(process.is_running() for process in worker)


def test_the_startup_script_starts_the_worker_where_the_runtime_does_not(
    running: Client, local_cloud: LocalCloud
) -> None:
    script = "#!/bin/bash\npython3 -m tensorflow.python.tools.grpc_tpu_worker\n"
    body = {
        "acceleratorType": "v2-8",
        "runtimeVersion": "tpu-vm-tf-2.19.0-pjrt",
        "metadata": {"startup-script": script},
    }
    running.post(f"{ALPHA}/nodes", body, nodeId="u")
    port = running.get(f"{ALPHA}/nodes/u")["networkEndpoints"][0]["port"]
    until(lambda: answers(port), "the worker answers")
    running.delete(f"{ALPHA}/nodes/u")
    # Not the port: another cloud on this machine may have it by now.
    assert local_cloud.cloud.machines.processes() == []


def test_only_this_machine_reaches_the_worker(running: Client) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("TensorFlow's server cannot be kept to the loopback interface here")
    outside = [address for address in own_addresses() if not address.startswith("127.")]
    if not outside:
        pytest.skip("this machine has no address but the loopback ones")
    running.post(
        f"{V1}/nodes", {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"}, nodeId="t"
    )
    port = running.get(f"{V1}/nodes/t")["networkEndpoints"][0]["port"]
    with pytest.raises(OSError, match=r"timed out|refused"):
        socket.create_connection((outside[0], port), timeout=1)
    assert answers(port)


def test_a_taken_port_stays_with_its_owner_and_a_shut_one_admits_no_client(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        taken = owner.getsockname()[1]
        ready, gate = tmp_path / "port", tmp_path / "shut"
        options = [f"--port={taken}", "--devices=1", f"--ready={ready}", f"--gate={gate}"]
        process = subprocess.Popen(
            [sys.executable, tpu_worker.__file__, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(ready.exists)
            port = int(ready.read_text())
            assert port != taken
            assert answers(port)
            if sys.platform.startswith("linux"):
                gate.touch()
                until(lambda: not answers(port))
                gate.unlink()
                until(lambda: answers(port))
        finally:
            process.terminate()
            process.wait(10)


def test_a_tpu_serves_again_at_its_endpoint_after_a_restart(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = LocalCloud(home)
    first.start()
    projects.enable_services(first.cloud, "tpu-stack-local", ("tpu.googleapis.com",))
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
    Client(first).post(f"{V2}/nodes", body, nodeId="t")
    port = Client(first).get(f"{V2}/nodes/t")["networkEndpoints"][0]["port"]
    first.stop()
    assert not answers(port)
    second = LocalCloud(home)
    second.start()
    try:
        until(lambda: answers(port))
        (endpoint,) = Client(second).get(f"{V2}/nodes/t")["networkEndpoints"]
        assert endpoint["port"] == port
    finally:
        second.cloud.machines.remove(HOST)
        second.stop()


_LOOK_UP = """
import importlib.util
import urllib.request  # which TensorFlow as a whole has imported before
package = importlib.util.find_spec("tensorflow").submodule_search_locations[0]
found = importlib.util.spec_from_file_location("client", f"{package}/python/tpu/client/client.py")
module = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
client = module.Client(tpu="t")
print("TensorFlow found", client.state(), client.network_endpoints()[0]["ipAddress"])
"""


def test_tensorflows_look_up_on_a_vm_takes_the_name_alone(
    running: Client, local_cloud: LocalCloud
) -> None:
    running.post(
        f"{ALPHA}/nodes", {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-base"}, nodeId="t"
    )
    script = f"#!/bin/bash\npython3 - <<'END'\n{_LOOK_UP}END\n"
    fields = {
        "name": "vm",
        "metadata": {"items": [{"key": "startup-script", "value": script}]},
        "serviceAccounts": [{"email": "default", "scopes": [CLOUD_PLATFORM]}],
    }
    zone = "compute.googleapis.com/compute/v1/projects/tpu-stack-local/zones/us-central1-b"
    running.post(f"{zone}/instances", machine("us-central1-b", **fields))
    key = "projects/tpu-stack-local/zones/us-central1-b/instances/vm"
    machines = local_cloud.cloud.machines
    until(lambda: "startup-script exit status" in machines.serial(key)[0])
    said, _ = machines.serial(key)
    machines.remove(key)
    assert "TensorFlow found READY 127.0.0.1" in said, said
