"""Makes what a job needs when it is submitted, and says when it is taken down again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpu_core.google import GoogleError
from tpu_core.records import dump
from tpustack.cloud.google import Google
from tpustack.cloud.tpu import Nodes
from tpustack.errors import UsageError
from tpustack.jobs.runners import why_waiting

if TYPE_CHECKING:
    from infra.settings import StackSettings

_NOT_FOUND = 404
_NEW = "it has no bucket yet"


class OnDemand:
    """What one stack is asked for along with a job.

    Args:
        stack: its name.
        idle_stop: after how many minutes without a job its TPU is taken down; None as it is.
        create: whether to bring it up if it is down.
        managed: whether Vertex AI runs the job.

    Raises:
        UsageError: the stack can't do it, or none is named.
    """

    def __init__(
        self, stack: str | None, idle_stop: int | None, *, create: bool, managed: bool
    ) -> None:
        if managed and (create or idle_stop is not None):
            raise UsageError("--create and --idle-stop are for stacks: Vertex AI makes its own TPU")
        self._stack, self._idle_stop, self._create = stack or "", idle_stop, create
        self._settings = self._load() if create or idle_stop is not None else None

    def prepare(self, queue: Queue, say: Callable[[str], None]) -> None:
        """Bring the stack up if that is wanted and it is down. Raises TpustackError."""
        why = self._why_down(queue) if self._create else None
        if why is None:
            return
        # Only here: no other command about jobs has to load the engine's library.
        from tpustack.engine.backend import users_own

        say(f"pulumi up for the stack {self._stack}: {why}")
        engine = users_own().select(self._stack)
        if why != _NEW:
            # What a limit has taken down is still in the state.
            engine.refresh(say)
        engine.up(say)

    def finish(self, queue: Queue) -> str | None:
        """Say when to take the TPU down; return why nobody ever does. Raises StoreError."""
        if self._idle_stop is not None:
            queue.store.write(paths.IDLE_STOP, dump({"minutes": self._idle_stop}))
        elif self._settings is not None and not self._settings.limits.any:
            return (
                f"nothing takes the TPU of the stack {self._stack} down after the job: give "
                "--idle-stop MINUTES, or set limits.idleMinutes"
            )
        return None

    def _load(self) -> StackSettings:
        from tpustack.stacks.files import load, require_file

        if not self._stack:
            raise UsageError("--create and --idle-stop need --stack NAME")
        require_file(self._stack)
        settings = load(self._stack)
        if self._idle_stop is not None and not (settings.limits.any or settings.recovery.enabled):
            raise UsageError(
                f"--idle-stop: the machine of the stack {self._stack} may not take its TPU down. "
                "Set limits.idleMinutes or limits.timeToLiveHours in its file, which gives it the "
                f"role, and run `pulumi up --stack {self._stack}`"
            )
        return settings

    def _why_down(self, queue: Queue) -> str | None:
        try:
            return why_waiting(queue) or self._why_without_tpu()
        except GoogleError as error:
            if error.status != _NOT_FOUND:
                raise
            return _NEW

    def _why_without_tpu(self) -> str | None:
        """Return that a limit, or somebody, has deleted the TPU."""
        from infra.names import names_of

        settings = self._settings
        assert settings is not None
        nodes = Nodes(Google(), settings.project)
        for name in names_of(settings, self._stack).tpus(settings.tpu.slices):
            if nodes.find(settings.tpu_zones, name) is None:
                return f"its TPU {name} is gone"
        return None
