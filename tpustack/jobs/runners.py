"""Whether a machine looks after a queue."""

from __future__ import annotations

from tpu_agent.jobs.queue import Queue
from tpu_core.lease import DURATION

_RUNNERS = "runners/"


def why_waiting(queue: Queue) -> str | None:
    """Return that no machine looks after the queue; None if one does. Raises StoreError."""
    ages = [item.age for item in queue.store.items(_RUNNERS)]
    if any(age <= DURATION for age in ages):
        return None
    seen = f"the last one was seen {min(ages):.0f} s ago" if ages else "none has ever done so"
    return (
        f"no machine runs the jobs of gs://{queue.store.bucket} now ({seen}). The job waits until "
        "one does: `pulumi up` starts the stack's"
    )
