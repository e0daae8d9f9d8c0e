"""The training hears from the metadata server that its machine is taken away."""

from __future__ import annotations

import threading

import pytest

from localcloud.app import LocalCloud
from localcloud.machines.machines import Machines
from tests.patience import until
from tests.unit.localcloud.machines.conftest import spec
from tpu_core.google import MetadataServer
from tpu_training.job.supervision import hear_notices
from tpu_training.loop.callbacks import ShutdownRequest

pytestmark = pytest.mark.server


def test_a_preemption_is_heard_while_the_machine_still_runs(local_cloud: LocalCloud) -> None:
    machine, machines = spec(preemptible=True), local_cloud.cloud.machines
    assert isinstance(machines, Machines)
    machines.boot(machine)
    shutdown, over = ShutdownRequest(), threading.Event()
    server = MetadataServer(f"127.0.0.1:{machines.port(machine.key)}")
    hear_notices(shutdown, over, server)
    assert server.wait("instance/?recursive=true", "", 60)
    assert not shutdown.requested
    machines._running[machine.key].metadata.publish(preempted=True)
    until(lambda: shutdown.requested)
    over.set()
    assert shutdown.reason == "Google preempts this machine (instance/preempted)"
