"""End a training whose model directory another process has taken over."""

from tpu_training.checkpoints.lease import Lease
from tpu_training.loop.callbacks import Callback, LoopReport


class Held(Callback):
    """Ends the training before its next write once `lease` is lost."""

    def __init__(self, lease: Lease) -> None:
        """Ask `lease` after each loop."""
        self._lease = lease

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Raise LeaseError if the lease is lost."""
        self._lease.check()
