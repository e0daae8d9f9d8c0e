"""The running emulator: cloud, APIs and the port they are reached at."""

from __future__ import annotations

from pathlib import Path

from localcloud.admin import Admin
from localcloud.core import projects
from localcloud.core.clock import Clock
from localcloud.core.cloud import DEVELOPER, Cloud, Latency, cloud_started
from localcloud.core.dispatch import Dispatcher
from localcloud.machines.machine import Network
from localcloud.machines.machines import Machines
from localcloud.server.authority import Authority
from localcloud.server.proxy import Listener
from localcloud.services import all_apis


class LocalCloud:
    """A local Google Cloud on one port of the loopback interface.

    Args:
        home: folder of its state.
        port: 0 for any free port.
        clock: the wall clock, or a virtual one in tests.
        latency: how long operations take, see `Cloud`.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        clock: Clock | None = None,
        latency: Latency = "none",
    ) -> None:
        self.cloud = Cloud(home, clock=clock, latency=latency)
        self.authority = Authority(home / "tls")
        self.dispatcher = Dispatcher(self.cloud, all_apis())
        tls, answer = self.authority.context(), self.dispatcher.answer
        self.cloud.machines = Machines(self.cloud, Network(tls, self.authority.bundle, answer))
        admin = Admin(self.cloud, lambda: self.listener.port, lambda: self.dispatcher.problems)
        self.listener = Listener(port, tls=tls, apis=answer, direct=admin.answer)

    def start(self) -> None:
        """Serve, and resume what an earlier run left unfinished."""
        projects.ensure(self.cloud, projects.DEFAULT_PROJECT, owner=DEVELOPER)
        self.cloud.operations.resume()
        cloud_started.run(self.cloud)
        self.cloud.machines.resume_all()
        self.listener.start()

    def stop(self) -> None:
        """Stop serving; the state stays on disk."""
        self.cloud.machines.suspend_all()
        self.listener.stop()
        self.cloud.close()
