"""The command line: from arguments to a command. Loads no TensorFlow."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from training import __version__
from training.commands import doctor
from training.commands.command import Command
from training.errors import InputError, ParamsError
from training.job import Job
from training.model_registry import DEFAULT_MODEL, built_in_models, load_model
from training.params import build_params, describe_params

_MODES = {
    "train": "train from the last checkpoint on",
    "evaluate": "evaluate the last checkpoint",
    "train-and-evaluate": "train, then evaluate",
}
_COMMANDS = (doctor,)
_EXIT_CODES = (
    "exit codes: 0 done, 1 failure, 2 wrong input, 75 interrupted by SIGTERM with its progress "
    "saved (start it again)"
)


@dataclass(frozen=True)
class Convert:
    """`data convert`."""

    source: str
    output: str
    name: str | None


class _Parser(argparse.ArgumentParser):
    """Errors in the form of every other error of this package."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see `{self.prog} --help`")


def parse(arguments: Sequence[str]) -> Job | Convert | Command:
    """Parse `arguments`. Raises InputError with everything that is wrong; --help exits."""
    parser = _build_parser(_help_model(arguments))
    known, rest = parser.parse_known_args(arguments)
    if "build" in known:
        command: Command = known.build(known, rest)
        return command
    if known.mode == "data":
        if rest:
            raise InputError(f"unknown argument {rest[0]}; see `training data convert --help`")
        return Convert(known.source, known.output, known.name)
    overrides, problems = _split_overrides(rest)
    flags = ("tpu", "tpu-zone", "tpu-project", "model", "data", "model-dir", "config", "debug")
    config = _read_config(known.config)
    named = config.pop("model", DEFAULT_MODEL)
    model = load_model(known.model or str(named))
    try:
        params = build_params(config, overrides, flags, model.params)
    except ParamsError as error:
        raise ParamsError([*problems, *error.problems]) from error
    if problems:
        raise ParamsError(problems)
    return Job(
        mode=known.mode,
        tpu=known.tpu,
        tpu_project=known.tpu_project,
        tpu_zone=known.tpu_zone,
        data=known.data,
        model_dir=known.model_dir,
        model=model,
        params=params,
    )


def _help_model(arguments: Sequence[str]) -> str:
    """The model whose parameters --help lists."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    name: str = parser.parse_known_args(arguments)[0].model
    return name


def _build_parser(help_model: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="training",
        description="TensorFlow training on Cloud TPUs, GPUs and CPUs.",
        epilog=_EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    modes = parser.add_subparsers(dest="mode", required=True, metavar="MODE")
    params = describe_params(load_model(help_model).params)
    for mode, description in _MODES.items():
        _add_job_arguments(
            modes.add_parser(
                mode,
                help=description,
                description=description,
                epilog=f"{params}\n\n{_EXIT_CODES}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )
    for command in _COMMANDS:
        command.add(modes)
    data = modes.add_parser("data", help="prepare data sets", allow_abbrev=False)
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    convert = actions.add_parser(
        "convert", help="write a data set as TFRecord files with a manifest", allow_abbrev=False
    )
    convert.add_argument(
        "--source", required=True, help="directory with MNIST's IDX files, or the word digits"
    )
    convert.add_argument("--output", required=True, help="directory to write to")
    convert.add_argument("--name", help="name of the data set (default: mnist, or digits)")
    _add_debug(convert)
    return parser


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tpu",
        help="a TPU's name, grpc://HOST:PORT (several with commas), or local on a TPU VM; default: "
        "TPU_GRPC_URL, TPU_NAME, TPU_CONFIG, COLAB_TPU_ADDR, KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, else "
        "this machine",
    )
    parser.add_argument(
        "--tpu-zone", help="of a TPU given by name (default: TPU_ZONE, or the VM's)"
    )
    parser.add_argument(
        "--tpu-project", help="of a TPU given by name (default: TPU_PROJECT, or the VM's)"
    )
    parser.add_argument(
        "--model",
        help=f"{', '.join(built_in_models())}, or a file NAME.py of your own (default: "
        f"{DEFAULT_MODEL}); with --help: list its parameters",
    )
    parser.add_argument("--data", required=True, help="data set's directory or gs:// URL")
    parser.add_argument("--model-dir", required=True, help="results' directory or gs:// URL")
    parser.add_argument("--config", help="YAML or JSON file with parameters")
    _add_debug(parser)


def _add_debug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show tracebacks and TensorFlow's log")


def _split_overrides(rest: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Take `--name=value` apart; also return a problem for each that has another form."""
    problems, overrides = [], []
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name.startswith("--") and equals:
            overrides.append((name.removeprefix("--"), value))
        else:
            problems.append(f"{argument}: expected --name=value")
    return overrides, problems


def _read_config(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config={path}: can't be read ({error})") from error
    content = _parse_json(text, path) if path.endswith(".json") else _parse_yaml(text, path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"--config={path}: expected `name: value` lines, found {content!r}")
    return content


def _parse_json(text: str, path: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"--config={path}: is no JSON ({error})") from error


def _parse_yaml(text: str, path: str) -> object:
    try:
        import yaml
    except ImportError as error:
        raise InputError(
            f"--config={path}: needs PyYAML, which is not installed here; write it as .json"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--config={path}: is no YAML ({error})") from error
