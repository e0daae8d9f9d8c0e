"""What a job's checkpoints remember of its earlier starts."""

from dataclasses import dataclass


@dataclass
class History:
    """How often the job was started, and for how long it has run in all."""

    starts: int = 1
    seconds: float = 0.0
