"""Write down what this start of the job does with its time."""

import logging
import os
import time
from collections.abc import Callable

from tpu_training.data import files
from tpu_training.goodput.entry import FOLDER, PARTS, Entry
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.step_times import StepTimes

# A killed start is known up to its last entry; each is a write to the bucket.
_WRITE_SECONDS = 60.0

logger = logging.getLogger(__name__)


class Ledger(Callback):
    """Keeps the entry of this start, `MODEL_DIR/ledger/BEGIN-PROCESS.json`.

    Runs after StepTimes, which measures. An entry that can't be written never ends a training.
    """

    def __init__(
        self,
        model_dir: str,
        times: StepTimes,
        begun: float,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str, str], None] = files.write_text,
    ) -> None:
        """Take the figures from `times`; the job was started at `begun` by `clock`."""
        self._times, self._clock, self._write = times, clock, write
        self._begun = begun
        self._begin = time.time() - (clock() - begun)
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(self._begin))}-{os.getpid()}.json"
        self._path = f"{model_dir.rstrip('/')}/{FOLDER}/{name}"
        self._first = self._last = 0
        self._written = clock()

    def start(self, step: int) -> None:
        """Note the first step."""
        self._first = self._last = step
        self._keep()

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Note the step; write from time to time."""
        self._last = step
        if self._clock() - self._written >= _WRITE_SECONDS:
            self._keep()

    def close(self) -> None:
        """Write the last time."""
        self._keep()

    def _keep(self) -> None:
        self._written = self._clock()
        seconds = {part: round(self._times.seconds[part], 3) for part in PARTS}
        duration = round(self._written - self._begun, 3)
        entry = Entry(round(self._begin, 3), duration, self._first, self._last, seconds)
        try:
            self._write(self._path, entry.to_json())
        except Exception as error:
            logger.warning("ledger: not written (%s)", error)
