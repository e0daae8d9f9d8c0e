"""What the rooms of tpu-stack share: the centre of the house, with the standard library alone.

`run` gives a program of one's own, in any framework, what the trainer has: a model directory that
no other process writes, and the ledger that `tpustack goodput` reads.
"""

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tpu_core.records import replace_file

if TYPE_CHECKING:
    from tpu_core.bucket import Bucket
    from tpu_core.lease import Right
    from tpu_core.ledger import Beginning

__version__ = "0.1.0"

_DIRECTORY = re.compile(r"gs://([^/]+)/(.*[^/])/*|(?!.*://)(.+)", re.S)
# A checkpoint may wait for the bucket for so long.
_PATIENCE_SECONDS = 60.0
START_AGAIN = 75
"""The exit code on which a supervisor starts a training again: EX_TEMPFAIL of sysexits.h."""

logger = logging.getLogger(__name__)


@contextmanager
def run(model_dir: str, *, writes: bool = True) -> Iterator["Run"]:
    """Hold a model directory while the block runs, and keep the ledger of its time.

    Args:
        model_dir: a local folder, or gs://BUCKET/FOLDER with the account of this machine.
        writes: False on all hosts of a slice but one: they get no lease and write nothing.

    Raises:
        SystemExit: Another process has the directory, or it can't be written. After SIGTERM with
            START_AGAIN.
    """
    # Here, so that other users of this package load none of it.
    from tpu_core import google, lease, ledger
    from tpu_core.bucket import Bucket

    if not (named := _DIRECTORY.fullmatch(model_dir)):
        raise SystemExit(
            f"model_dir={model_dir!r}: it is neither a local folder nor gs://BUCKET/FOLDER; "
            "a job's own is in MODEL_DIR"
        )
    name, folder, local = named.groups()
    beginning = ledger.Beginning()
    try:
        with ExitStack() as stack:
            try:
                with beginning.measure("wait"):
                    right = stack.enter_context(lease.hold(model_dir, writes))
                send = google.machine_transport(_PATIENCE_SECONDS) if name else None
                files = _Files(folder or local, Bucket(name, send) if send else None)
                made = Run(right, files, beginning, writes)
            except OSError as error:
                raise SystemExit(f"model_dir={model_dir}: {error}") from None
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                before = signal.signal(signal.SIGTERM, made._hear)
                stack.callback(signal.signal, signal.SIGTERM, before)
            stack.push(made._end)
            yield made
    except lease.LeaseError as error:
        raise SystemExit(str(error)) from None


class Run:
    """One start of a program that trains, for one thread.

    Attributes:
        done: How many steps the start before this one finished, by its ledger; 0 without one.
            Those that its checkpoint lacks are done again.
        why: Why the program has to end; empty until SIGTERM came.
    """

    def __init__(
        self, right: "Right", files: "_Files", beginning: "Beginning", writes: bool
    ) -> None:
        from tpu_core import ledger

        self._right, self._clock, self._last = right, beginning.clock, beginning.clock()
        self._write = files.write if writes else lambda path, data: None
        self.read = files.read
        self._seconds = dict.fromkeys(ledger.PARTS, 0.0) | beginning.seconds
        self._entry = ledger.Writer(
            self._seconds, beginning, lambda path, text: self._write(path, text.encode())
        )
        self._part, self._asked, self.why = "restore", False, ""
        entries = filter(None, map(ledger.parse_entry, files.newest(ledger.FOLDER)))
        self.done = next((entry.last_step for entry in entries), 0)

    def step(self, done: int) -> bool:
        """Note how many steps are done: once before the first, then after each.

        It returns whether to save now, because SIGTERM came. The next call then ends the program.
        """
        self._right.check()
        self._spend(self._part)
        if self._part == "restore":
            self._part = "start"
            self._entry.start(done)
        else:
            self._part = "compute"
            self._entry.step(done)
        if self._asked:
            self._stop()
        self._asked = bool(self.why)
        return self._asked

    def save(self, path: str, data: bytes) -> None:
        """Write a file below the model directory, whole or not at all, as a checkpoint."""
        with self.saving():
            self._write(path, data)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Let a library write the checkpoint in the block. After SIGTERM the program then ends."""
        self._spend(self._part)
        self._right.confirm()
        yield
        self._spend("checkpoint")
        self._entry.keep()
        if self.why:
            self._stop()

    def _hear(self, _signal: int, _frame: FrameType | None) -> None:
        self.why = "received SIGTERM"
        if self._part == "restore":
            self._stop()  # There is nothing to save.

    def _stop(self) -> None:
        logger.warning("%s; start again to resume", self.why)
        raise SystemExit(START_AGAIN)

    def _end(self, error: type[BaseException] | None, *_: object) -> None:
        from tpu_core import ledger

        self._spend("idle")
        self._entry.keep(self.why or (f"failed: {error.__name__}" if error else ledger.FINISHED))

    def _spend(self, part: str) -> None:
        now = self._clock()
        self._seconds[part] += now - self._last
        self._last = now


class _Files:
    """The files below a folder of this machine, or of a bucket."""

    def __init__(self, folder: str, bucket: "Bucket | None") -> None:
        self._folder, self._bucket = folder, bucket

    def newest(self, folder: str) -> Iterator[str]:
        """Yield the texts of a folder's files by their names, the last first."""
        if self._bucket:
            items = self._bucket.items(f"{self._folder}/{folder}/", deep=False)
            names = [item.path.rpartition("/")[2] for item in items]
        else:
            names = sorted(path.name for path in Path(self._folder, folder).glob("*"))
        for name in reversed(names):
            yield (self.read(f"{folder}/{name}") or b"").decode(errors="replace")

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if there is no such file. Raises OSError."""
        if self._bucket:
            found = self._bucket.read(f"{self._folder}/{path}")
            return found[0] if found else None
        file = Path(self._folder, path)
        return file.read_bytes() if file.exists() else None

    def write(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all. Raises OSError."""
        if self._bucket:
            self._bucket.write(f"{self._folder}/{path}", data)
        else:
            file = Path(self._folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, data)
