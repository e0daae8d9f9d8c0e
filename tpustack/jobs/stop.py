"""Ends a job."""

from __future__ import annotations

import time

from tpu_agent.jobs.queue import Job, Queue
from tpustack.jobs import waiting
from tpustack.jobs.submit import who
from tpustack.jobs.vertex import follow as vertex


def stop(queue: Queue, name: str) -> Job:
    """Want a job to end, and return it: one that waits has ended, one that runs will soon.

    Raises:
        UsageError: there is no such job.
        StoreError: the bucket refuses.
        TpustackError: Vertex AI refuses.
    """
    before = waiting.read(queue, name)
    changed = queue.change(
        name, lambda there: None if there.is_over else there.stopping(time.time(), who())
    )
    queue.ring()
    vertex.stop(queue, before)
    return changed or waiting.read(queue, name)
