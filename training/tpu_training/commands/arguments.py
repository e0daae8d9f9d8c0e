"""The arguments that describe a job: its TPU, model, data, results and parameters."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_training.errors import InputError, ParamsError
from tpu_training.job.job import Job
from tpu_training.models.params import build_params
from tpu_training.models.registry import DEFAULT_MODEL, built_in_models, load_model


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job."""
    parser.add_argument(
        "--tpu",
        help="a TPU's name, grpc://HOST:PORT (several with commas), or local on a TPU VM; default: "
        "TPU_GRPC_URL, TPU_NAME, TPU_CONFIG, COLAB_TPU_ADDR, KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, or "
        "this machine",
    )
    parser.add_argument(
        "--tpu-zone", help="zone of a TPU given by name (default: TPU_ZONE, or the VM's)"
    )
    parser.add_argument(
        "--tpu-project",
        help="project of a TPU given by name (default: TPU_PROJECT, or the VM's)",
    )
    parser.add_argument(
        "--model",
        help=f"{', '.join(built_in_models())}, or a file NAME.py of your own (default: "
        f"{DEFAULT_MODEL}); with --help, list its parameters",
    )
    parser.add_argument("--data", required=True, help="directory or gs:// URL of the data set")
    parser.add_argument("--model-dir", required=True, help="directory or gs:// URL for the results")
    parser.add_argument("--config", help="YAML or JSON file with parameters")


def build_job(mode: str, known: argparse.Namespace, rest: Sequence[str]) -> Job:
    """Return the job that the parsed flags and the parameters in `rest` describe.

    Raises:
        InputError: With every problem at once.
    """
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
        mode=mode,
        tpu=known.tpu,
        tpu_project=known.tpu_project,
        tpu_zone=known.tpu_zone,
        data=known.data,
        model_dir=known.model_dir,
        model=model,
        params=params,
    )


def _split_overrides(rest: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split each `--name=value`; also return a problem for each argument of another form."""
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
        raise InputError(f"--config={path}: is not JSON ({error})") from error


def _parse_yaml(text: str, path: str) -> object:
    try:
        import yaml
    except ImportError as error:
        raise InputError(
            f"--config={path}: needs PyYAML, which is not installed; use a .json file instead"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--config={path}: is not YAML ({error})") from error
