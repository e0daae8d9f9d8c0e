"""`tpu-training MODE …`: parse the command line, run it, and report how it ended.

Parsing loads no TensorFlow, except for a user's own model file that does.
"""

import argparse
import json
import logging
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import tpu_training.job.start as start
from tpu_training import __version__, commands, compile_command, errors
from tpu_training.compile.programs import import_tensorflow
from tpu_training.job.job import Job
from tpu_training.job.supervision import supervised, write_outcome
from tpu_training.models.params import describe_params, read_config
from tpu_training.models.registry import DEFAULT_MODEL, load_model
from tpu_training.monitoring.terminal import TerminalHandler, quiet_libraries

# What runs as a whole job: with a lease of the model directory, supervision and an outcome.
_MODES = {
    "train": "train, from the last checkpoint if there is one",
    "evaluate": "evaluate the last checkpoint",
    "train-and-evaluate": "train, then evaluate",
}
# Commands, other than the modes, that load TensorFlow: the first one trains, the others leave the
# TPU to a training.
_TRAINING = "lr-range-test"
_NO_TRAINING = ("compile", "data", "export")
# They take the parameters of train.
_LIKE_JOBS = ("lr-range-test", "compile")
_HELP_WIDTH = 80
_EXIT_CODES = (
    "exit codes: 0 done, 1 failure, 2 wrong input, 75 interrupted by SIGTERM with all progress "
    "saved (start again to resume)"
)
# The shell's code for a program that SIGINT ended: 128 + 2.
_EXIT_CTRL_C = 130
_FRACTION = commands.number(float, 0.0001, 0.9999)
# Of a sweep or a trial: fewer tell nothing about a loss that is as noisy as a batch's.
_FEWEST_STEPS = 20
# The trust ratio of lars divides its rates by about 1000.
_HIGHEST, _LARS_HIGHEST = 10.0, 100.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    The agent and pipelines read how it ended: one line on standard error, the exit code, and the
    outcome that a supervised process writes.
    """
    begun = time.monotonic()
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    # A model file imports TensorFlow while the command line is parsed.
    _set_up_logging(debug)
    try:
        prepare(given)
        command = parse(given)
        if not isinstance(command, Job):
            return command()
        with supervised(own_process=True) as (shutdown, hang_timer):
            result = start.run_job(command, shutdown, hang_timer, begun, own_process=True)
        print(f"training finished {result.summary}", flush=True)
        write_outcome(0, "done", "")
    except KeyboardInterrupt:
        print("training interrupted: Ctrl-C", file=sys.stderr)
        return _EXIT_CTRL_C
    except Exception as error:
        if debug:
            traceback.print_exc()
        known = error if isinstance(error, errors.TrainingError) else errors.translate(error)
        ending = "interrupted" if isinstance(known, errors.Interrupted) else "failed"
        # One line even when a library's message has several: people grep for it.
        message = " ".join(str(known).split())
        # job/start.py takes this beginning off the error of a conversion that it runs.
        what = "data convert" if list(given[:2]) == ["data", "convert"] else "training"
        print(f"{what} {ending}: {message}", file=sys.stderr, flush=True)
        write_outcome(known.exit_code, known.cause, message)
        return known.exit_code
    return 0


def _set_up_logging(debug: bool) -> None:
    """Log to standard output; show TensorFlow's log only with --debug, its errors always."""
    logging.basicConfig(format="%(message)s", handlers=[TerminalHandler(sys.stdout)])
    logging.getLogger("tpu_training").setLevel(logging.INFO)
    if not debug:
        quiet_libraries()
        warnings.simplefilter("ignore")


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises this package's errors."""

    def error(self, message: str) -> NoReturn:
        raise errors.InputError(f"{message}; see `{self.prog} --help`")


def prepare(arguments: Sequence[str]) -> None:
    """Set what TensorFlow needs before `parse`, which may import it with an own model.

    TensorFlow reads its environment once, when it is imported: which TPU library to load, which
    devices to see, what to log.
    """
    parser = _Parser(prog="tpu-training", add_help=False, allow_abbrev=False)
    parser.add_argument("mode", nargs="?")
    parser.add_argument("--tpu")
    parser.add_argument("--backend")
    parser.add_argument("--config")
    known = parser.parse_known_args(arguments)[0]
    trains = known.mode in _MODES or known.mode == _TRAINING
    if trains or known.mode in _NO_TRAINING:
        backend = known.backend or read_config(known.config).get("backend")
        start.prepare_tensorflow(known.tpu, trains, backend)


def parse(arguments: Sequence[str]) -> Job | commands.Command:
    """Parse `arguments`; --help exits.

    Parameters (--NAME=VALUE) depend on the model, so argparse leaves them in the rest, which goes
    to `build_params`. A command that takes no parameters has no --config either.

    Raises:
        InputError: With every problem at once.
    """
    parser = _build_parser(_help_model(arguments))
    known, rest = parser.parse_known_args(arguments)
    if rest and "config" not in known:
        raise errors.InputError(f"unknown argument {rest[0]}; see `{known.prog} --help`")
    if "build" not in known:
        job = commands.build_job(known.mode, known, rest)
        # --check ends here: building the job has reported all that is wrong with the arguments.
        return (lambda: 0) if known.check else job
    known.rest = rest
    command: commands.Command = known.build(known)
    return command


def _help_model(arguments: Sequence[str]) -> str:
    """Return the model whose parameters --help lists: --help exits before the model is known."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    name: str = parser.parse_known_args(arguments)[0].model
    return name


def _build_parser(help_model: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tpu-training",
        description="TensorFlow training on Cloud TPUs, GPUs and CPUs.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    modes = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
    for mode, description in _MODES.items():
        job = modes.add_parser(mode, help=description, description=description, allow_abbrev=False)
        commands.add_job_arguments(job)
        commands.add_debug(job)
    _add_data(modes)
    compile_command.add(modes)
    _add_lr_range_test(modes)
    commands.add_export(modes)
    commands.add_doctor(modes)
    params = describe_params(load_model(help_model).params)
    for mode in (*_MODES, *_LIKE_JOBS):
        # The parameters come at the end of --help, a line each.
        listing = modes.choices[mode]
        listing.epilog = f"{params}\n\n{_EXIT_CODES}"
        listing.formatter_class = argparse.RawDescriptionHelpFormatter
        listing.description = textwrap.fill(listing.description or "", _HELP_WIDTH)
    return parser


def _add_data(modes: Any) -> None:
    data = modes.add_parser("data", help="convert and check datasets", allow_abbrev=False)
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    convert = commands.add_command(
        actions,
        "convert",
        _build_convert,
        help="write a dataset as TFRecord files with a manifest",
    )
    option = convert.add_argument
    option(
        "--source",
        required=True,
        help="a folder with MNIST's IDX files, with one folder of images per class, or with "
        "images/ and masks/; a CSV, .txt or Parquet file; WebDataset's tar files; a "
        "version's folder of TensorFlow Datasets, tfds:NAME or hf:OWNER/NAME; a Python file with a "
        "function dataset(split, context); or the word digits",
    )
    option("--output", required=True, help="new or empty directory, or gs:// URL, to write to")
    option("--name", help="name of the dataset (default: from the source)")
    option("--feature", metavar="COLUMN", help="column with the images or texts")
    option("--label", metavar="COLUMN", help="column with the labels")
    option("--target", metavar="COLUMNS", help="columns with numbers to learn, instead of a label")
    option("--labels", metavar="COLUMNS", help="columns of 0 and 1, one for each label")
    option(
        "--test-fraction",
        metavar="PART",
        type=_FRACTION,
        default=0.1,
        help="part of the source for the test split, if it has none (default: 0.1)",
    )
    option(
        "--validation-fraction",
        metavar="PART",
        type=_FRACTION,
        default=0.0,
        help="part of the training examples for the split validation (default: none, or the "
        "source's own)",
    )
    option(
        "--seed",
        type=commands.number(int, 0),
        default=0,
        help="seed of splits and order (default: 0)",
    )
    option(
        "--encoding",
        choices=("raw", "encoded"),
        help="raw stores images as bytes of one size, encoded as JPEG and PNG (default: as in the "
        "source)",
    )
    option(
        "--text-length",
        type=commands.number(int, 2),
        default=128,
        help="token ids per text (default: 128)",
    )
    option("--vocabulary", metavar="FILE", help="vocab.txt, tokenizer.json, SentencePiece .model")
    option(
        "--vocabulary-size",
        type=commands.number(int, 8),
        default=8192,
        help="size of the vocabulary that is collected from the texts (default: 8192)",
    )
    option(
        "--pack",
        action="store_true",
        help="put as many texts into an example as fit, without labels, for a language model",
    )
    inspect = commands.add_command(
        actions,
        "inspect",
        lambda known: partial(_inspect_data, known.data, known.json),
        help="print counts, shapes and classes of a dataset, and verify its checksums",
    )
    option = inspect.add_argument
    option("--data", required=True, help="directory or gs:// URL of the dataset")
    option("--json", action="store_true", help="print JSON")


def _build_convert(known: argparse.Namespace) -> commands.Command:
    """Check all that can be checked before a source of many GB is read."""
    # They load numpy, which --help and a training of a TPU do without.
    from tpu_training.data.conversion import Storage
    from tpu_training.data.source import Options

    if sum(value is not None for value in (known.label, known.target, known.labels)) > 1:
        raise errors.InputError(
            "--label, --target and --labels exclude each other; pass one of them"
        )
    options = Options(
        known.name,
        known.feature,
        known.label,
        known.test_fraction,
        known.seed,
        target=_names(known.target),
        labels=_names(known.labels),
        length=known.text_length,
        validation_fraction=known.validation_fraction,
    )
    storage = Storage(
        *(known.encoding, known.text_length, known.vocabulary, known.vocabulary_size, known.pack)
    )

    def run() -> int:
        from tpu_training.data.conversion import convert

        # A user's file may need what is spared.
        spared = () if known.source.endswith(".py") else (import_tensorflow,)
        manifest = convert(known.source, known.output, options, storage, *spared)
        print(f"data convert finished data={manifest.name} output={known.output}", flush=True)
        return 0

    return run


def _inspect_data(data: str, as_json: bool) -> int:
    """Print what is in it; DataError when a file is not what its checksum says."""
    from tpu_training.data.inspection import inspect

    found = inspect(data)
    print(json.dumps(found.as_json(), indent=2) if as_json else found, flush=True)
    return 0


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _add_lr_range_test(modes: Any) -> None:
    parser = commands.add_command(
        modes,
        "lr-range-test",
        _build_lr_range_test,
        help="find a good learning rate (Leslie Smith's test)",
        description="Train a new model and raise the learning rate with each step until the loss "
        "diverges. Then train briefly at rates around the lowest loss, and suggest "
        "the best. The results are in lr_range_test/ of the model directory (plot, "
        "CSV and JSON) and in TensorBoard. Takes the parameters of train.",
    )
    commands.add_job_arguments(parser)
    option = parser.add_argument
    option("--min-rate", type=float, default=1e-6, help="first rate (default: 1e-6)")
    option("--max-rate", type=float, help="last rate (default: 10, with lars 100)")
    steps = commands.number(int, _FEWEST_STEPS)
    option("--sweep-steps", type=steps, default=150, help="steps of the sweep (default: 150)")
    option(
        "--trial-steps",
        type=steps,
        default=100,
        help="steps of each training after the sweep (default: 100)",
    )
    option(
        "--smoothing",
        type=commands.number(float, 0, 0.999),
        default=0.9,
        help="part of the running mean that each step keeps (default: 0.9)",
    )
    option("--no-plot", action="store_true", help="don't draw the plot")


def _build_lr_range_test(known: argparse.Namespace) -> commands.Command:
    """Check the sweep's own flags first: building the job may run a user's model file."""
    highest = _HIGHEST if known.max_rate is None else known.max_rate
    if not 0 < known.min_rate < highest <= _LARS_HIGHEST:
        raise errors.InputError(
            f"--min-rate={known.min_rate:g} --max-rate={highest:g}: expected two rates above 0, "
            f"the first below the second, the second at most {_LARS_HIGHEST:g}"
        )
    job = commands.build_job("lr-range-test", known, known.rest)
    return partial(_run_lr_range_test, job, known)


def _run_lr_range_test(job: Job, known: argparse.Namespace) -> int:
    """Sweep, write the results to the model directory; 1 when no rate can be suggested."""
    # Before the sweep: without matplotlib, minutes of training would end without their plot.
    if not known.no_plot:
        otherwise = ", or omit the plot with --no-plot"
        errors.require("matplotlib", "matplotlib", "plots", "the plot", otherwise)
    job = start.with_converted_data(job)
    workers, wait = start.find_workers(job)
    # It loads TensorFlow, for which the report of a wrong --tpu should not wait.
    from tpu_training.job.lr_range_test import Sweep, connect_and_run

    highest = known.max_rate or (_LARS_HIGHEST if job.params.optimizer == "lars" else _HIGHEST)
    sweep = Sweep(known.min_rate, highest, known.sweep_steps, known.smoothing, known.trial_steps)
    verdict = connect_and_run(workers, wait, job, sweep, plot=not known.no_plot)
    return errors.EXIT_FAILURE if verdict.suggestion is None else 0


if __name__ == "__main__":
    sys.exit(main())
