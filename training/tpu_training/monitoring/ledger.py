"""Write down what this start of the job does with its time."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping

from tpu_training.data import files
from tpu_training.goodput.account import Account, account
from tpu_training.goodput.ledger import ASIDE, FINISHED, FOLDER, PARTS, Entry, File, read
from tpu_training.goodput.ledger import Ledger as WholeLedger
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.step_times import StepTimes
from tpu_training.monitoring.summaries import Summaries

# A killed start is known up to its last entry; each is a write to the bucket.
_WRITE_SECONDS = 60.0
# TensorBoard sorts by name; what people look for, train/loss, comes first.
TAG = "wall_time"

logger = logging.getLogger(__name__)


def read_ledger(model_dir: str) -> WholeLedger:
    """Read the ledger in a model directory. Raises TensorFlow's errors, but not for garbage."""
    folder = f"{model_dir.rstrip('/')}/{FOLDER}"
    return read(
        File(name, "" if name.endswith(ASIDE) else _text(f"{folder}/{name}"))
        for name in files.names(folder)
        if name.endswith((".json", ASIDE))
    )


def _text(path: str) -> str:
    return files.read_bytes(path).decode("utf-8", errors="replace")


class Ledger(Callback):
    """Keeps the entry of this start, `MODEL_DIR/ledger/BEGIN-PROCESS.json`.

    Runs after StepTimes, which measures. An entry that can't be written never ends a training.
    TensorBoard gets the part of the wall time that went into each state, over all starts.
    """

    def __init__(
        self,
        model_dir: str,
        times: StepTimes,
        begun: float,
        summaries: Summaries,
        why: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str, str], None] = files.write_text,
    ) -> None:
        """Take the figures from `times`; the job was started at `begun` by `clock`.

        `why` says what ended it, if somebody asked it to end.
        """
        self._times, self._clock, self._write = times, clock, write
        self._begun, self._why, self._summaries = begun, why, summaries
        self._begin = time.time() - (clock() - begun)
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(self._begin))}-{os.getpid()}.json"
        self._model_dir = model_dir
        self._path = f"{model_dir.rstrip('/')}/{FOLDER}/{name}"
        self._first = self._last = 0
        self._goal: int | None = None
        self._before: Account | None = None
        # Each start is a file in the bucket, and a job may have hundreds.
        self._reader = threading.Thread(target=self._read, name="ledger", daemon=True)
        self._written = clock()

    def start(self, step: int) -> None:
        """Note the first step; read what the starts before did, which no step waits for."""
        self._first = self._last = step
        self._reader.start()
        self._keep("")

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Note the step; write from time to time."""
        self._last, self._goal = step, report.last_step
        # A start that is killed can't write later how far its checkpoints go.
        if report.checkpoint_seconds or self._clock() - self._written >= _WRITE_SECONDS:
            self._keep("")
            self._show(step)

    def close(self) -> None:
        """Write why the training ended; the evaluations of a finished job come yet."""
        self._keep(self._why() or ("" if self._last == self._goal else "the trainer ended"))

    def finish(self) -> None:
        """Write the last time, after all evaluations."""
        self._keep(FINISHED)
        self._reader.join()
        self._show(self._last)

    def _read(self) -> None:
        try:
            self._before = self._account_before()
        except Exception as error:
            logger.warning("ledger: not read (%s)", error)

    def _account_before(self) -> Account:
        """Account for all until now: this start's own seconds come later."""
        ledger = read_ledger(self._model_dir)
        own = self._path.rpartition("/")[2]  # It is being written at this moment.
        for name in ledger.broken:
            if name != own:
                self._keep_aside(f"{self._model_dir.rstrip('/')}/{FOLDER}/{name}")
        none = dict.fromkeys(PARTS, 0.0)
        now = Entry(self._begin, 0.0, self._first, self._first, none)
        return account(WholeLedger([*ledger.entries, now], ledger.spans, [], {}))

    def _keep_aside(self, path: str) -> None:
        """Rename garbage: it is told once, here, and no later start reads it again."""
        try:
            files.rename(path, path + ASIDE)
        except Exception as error:
            logger.warning("ledger: %s is garbage, and can't be renamed (%s)", path, error)
        else:
            logger.warning("ledger: %s is garbage; it is kept as %s%s", path, path, ASIDE)

    def _show(self, step: int) -> None:
        if self._reader.is_alive():
            return
        own = account(WholeLedger([self._entry("")], [], [], {})).seconds
        before: Mapping[str, float] = self._before.seconds if self._before else {}
        seconds = {state: spent + before.get(state, 0.0) for state, spent in own.items()}
        whole = sum(seconds.values()) or 1.0
        parts = {f"{TAG}/{state}": spent / whole for state, spent in seconds.items()}
        self._summaries.scalars(step, parts)

    def _entry(self, ending: str) -> Entry:
        seconds = {part: round(self._times.seconds[part], 3) for part in PARTS}
        return Entry(
            begin=round(self._begin, 3),
            duration=round(self._clock() - self._begun, 3),
            first_step=self._first,
            last_step=self._last,
            seconds=seconds,
            machine=socket.gethostname(),
            ending=ending,
        )

    def _keep(self, ending: str) -> None:
        self._written = self._clock()
        try:
            self._write(self._path, self._entry(ending).to_json())
        except Exception as error:
            logger.warning("ledger: not written (%s)", error)
