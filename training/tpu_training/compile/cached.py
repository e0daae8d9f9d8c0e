"""Answer from the cache alone: never compiles, and loads no TensorFlow."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_training.compile import cache
from tpu_training.compile.answer import Answer
from tpu_training.compile.request import request
from tpu_training.compile.run import answer_key
from tpu_training.compile.tpus import tpus
from tpu_training.data.manifest import Manifest
from tpu_training.errors import InputError, ParamsError
from tpu_training.models.params import Params, build_params, read_config, split_overrides
from tpu_training.models.registry import BUILT_IN, DEFAULT_MODEL, load_model


def cached(tpu: str, model: str, given: Mapping[str, Any], manifest: Manifest) -> Answer | None:
    """Return what `tpu-training compile` found for a job; None if it was not asked.

    Args:
        tpu: The TPU type.
        model: The model's name, or the path of a user's file, which is read but not run.
        given: The parameters that the job gives, of its command line and its --config.
        manifest: The job's data set; see `read_manifest`.
    """
    if tpu not in tpus() or (model.endswith(".py") and not Path(model).is_file()):
        return None
    try:
        spec = manifest.input_spec(_params(model, given).image_size)
    except InputError:
        return None
    return cache.load(answer_key(request(model, given, spec), tpu), Answer)


def cached_job(tpu: str, arguments: Sequence[str], manifest: Manifest) -> Answer | None:
    """Return what is known of the job that `arguments` of `tpu-training train` describe.

    None, too, for arguments that name a TPU or data of their own, or that can't be read.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--model", "--config", "--data"):
        parser.add_argument(flag)
    try:
        known, rest = parser.parse_known_args(arguments)
        model, given = described(known.model, known.config, rest)
    except (argparse.ArgumentError, InputError):
        return None
    return None if known.data else cached(tpu, model, given, manifest)


def described(
    model: str | None, config: str | None, rest: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Return the model's name and the parameters given, of --model, --config and `--NAME=VALUE`.

    A user's model is not loaded, so names of parameters are not checked.

    Raises:
        InputError: The file or an argument can't be read.
    """
    parameters = read_config(config)
    overrides, problems = split_overrides(rest)
    if problems:
        raise ParamsError(problems)
    named = parameters.pop("model", DEFAULT_MODEL)
    return model or str(named), {**parameters, **dict(overrides)}


def _params(model: str, given: Mapping[str, Any]) -> Params:
    """Return the parameters; of a user's model only those that every model has."""
    given = {name: value for name, value in given.items() if name != "task"}
    if model in BUILT_IN:
        return build_params(given, (), (), load_model(model).params)
    common = Params.__dataclass_fields__.keys()
    names = {str(name).replace("-", "_"): value for name, value in given.items()}
    return build_params({name: names[name] for name in names if name in common}, ())
