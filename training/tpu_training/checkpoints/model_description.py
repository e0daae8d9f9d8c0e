"""`model.json`: the description from which a model directory's model can be rebuilt."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_training.data import files
from tpu_training.errors import InputError
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import ModelDefinition, load_model
from tpu_training.models.spec import DataSpec

_FILE_NAME = "model.json"


@dataclass(frozen=True)
class ModelDescription:
    """A model's name or file, its parameters, and its training data."""

    model: str
    params: Mapping[str, Any]
    spec: DataSpec
    data: str

    def write(self, model_dir: str) -> None:
        """Write it to `model_dir`."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"
        files.write_text(_path(model_dir), text)

    def definition(self, other: str | None = None) -> tuple[ModelDefinition, Params]:
        """Load the model's code, from the file `other` if it was moved."""
        definition = load_model(other or self.model)
        return definition, build_params(self.params, (), kind=definition.params)


def describe_model(
    definition: ModelDefinition, params: Params, spec: DataSpec, data: str
) -> ModelDescription:
    """Describe the model that is about to be trained, with its changed parameters only."""
    fields = dataclasses.fields(params)
    changed = {f.name: getattr(params, f.name) for f in fields if _differs(params, f)}
    return ModelDescription(definition.name, changed, spec, data)


def read_description(model_dir: str) -> ModelDescription:
    """Read the description from `model_dir`.

    Raises:
        InputError: It is missing or malformed.
    """
    path = _path(model_dir)
    text = files.read_text(path)
    if text is None:
        raise InputError(
            f"--model-dir={model_dir}: there is no {_FILE_NAME} in it, which every training writes "
            "when it starts; is it the directory that was given to the training?"
        )
    try:
        content = json.loads(text)
        spec = content["spec"]
        return ModelDescription(
            model=str(content["model"]),
            params=dict(content["params"]),
            spec=DataSpec(**spec | {"shape": tuple(spec["shape"])}),
            data=str(content["data"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is broken ({type(error).__name__}: {error})") from error


def _differs(params: Params, field: "dataclasses.Field[Any]") -> bool:
    return bool(getattr(params, field.name) != field.default)


def _path(model_dir: str) -> str:
    return f"{model_dir.rstrip('/')}/{_FILE_NAME}"
