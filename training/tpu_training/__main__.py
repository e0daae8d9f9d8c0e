"""`tpu-training MODE …`: parse the command line, run it, and report how it ended."""

import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence

from tpu_training.commands.cli import parse, prepare
from tpu_training.data.buckets import set_up_buckets
from tpu_training.errors import Interrupted, TrainingError
from tpu_training.job.job import Job
from tpu_training.job.start import run_job
from tpu_training.job.supervision import supervised, write_outcome
from tpu_training.monitoring.terminal import TerminalHandler, quiet_libraries

_EXIT_CTRL_C = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    begun = time.monotonic()
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    # A model file imports TensorFlow while the command line is parsed.
    _set_up_logging(debug)
    set_up_buckets(os.environ)
    try:
        prepare(given)
        command = parse(given)
        if not isinstance(command, Job):
            return command()
        print(f"training finished {_run(command, begun)}", flush=True)
        write_outcome(0, "done", "")
    except KeyboardInterrupt:
        print("training interrupted: Ctrl-C", file=sys.stderr)
        return _EXIT_CTRL_C
    except Exception as error:
        if debug:
            traceback.print_exc()
        known = error if isinstance(error, TrainingError) else _translate(error)
        ending = "interrupted" if isinstance(known, Interrupted) else "failed"
        # One line even when a library's message has several: people grep for it.
        message = " ".join(str(known).split())
        what = "data convert" if list(given[:2]) == ["data", "convert"] else "training"
        print(f"{what} {ending}: {message}", file=sys.stderr, flush=True)
        write_outcome(known.exit_code, known.cause, message)
        return known.exit_code
    return 0


def _run(job: Job, begun: float) -> str:
    with supervised(own_process=True) as (shutdown, hang_timer):
        return run_job(job, shutdown, hang_timer, begun, own_process=True).summary


def _translate(error: Exception) -> TrainingError:
    from tpu_training.errors.catalog import translate

    return translate(error)


def _set_up_logging(debug: bool) -> None:
    """Log to standard output; show TensorFlow's log only with --debug, its errors always."""
    terminal = sys.stdout.isatty()
    handler = TerminalHandler(sys.stdout) if terminal else logging.StreamHandler(sys.stdout)
    logging.basicConfig(format="%(message)s", handlers=[handler])
    logging.getLogger("tpu_training").setLevel(logging.INFO)
    if not debug:
        quiet_libraries()
        warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main())
