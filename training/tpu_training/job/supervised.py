"""What a job hears while it works, from the command line and from Python alike."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tpu_training.job.hang_timer import HangTimer
from tpu_training.job.notices import hear_notices
from tpu_training.loop.callbacks import ShutdownRequest


@contextmanager
def supervised(*, own_process: bool = False) -> Iterator[tuple[ShutdownRequest, HangTimer]]:
    """Hear SIGTERM and notices, and end a process that hangs, while the block runs.

    Signals are heard in the main thread only, where the program has no handler of its own.

    Args:
        own_process: Whether the process ends with the block. After an error all stays on then:
            what waits at the exit may hang, too.
    """
    shutdown, hang_timer, over = ShutdownRequest(), HangTimer(), threading.Event()
    with ExitStack() as undo:
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        hears = in_main and before in (signal.SIG_DFL, signal.SIG_IGN)
        if hears:
            undo.callback(signal.signal, signal.SIGTERM, before)
            shutdown.install()
        if hears and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            # It requests a profile. Before training starts it must not end the process.
            undo.callback(signal.signal, signal.SIGUSR1, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        undo.callback(hang_timer.uninstall)
        hang_timer.install(signals=hears)
        undo.callback(over.set)
        hear_notices(shutdown, over)
        try:
            yield shutdown, hang_timer
        except BaseException:
            if own_process:
                undo.pop_all()
            raise
