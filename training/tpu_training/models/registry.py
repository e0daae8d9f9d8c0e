"""Find the model that `--model` names: a built-in one or a user's file.

Loads no TensorFlow unless the user's file does.
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tpu_training import models
from tpu_training.errors import InputError
from tpu_training.models.params import Params, suggest
from tpu_training.models.spec import DataSpec

DEFAULT_MODEL = "mnist_cnn"

# (params, data, seed) -> a tf.Module that maps (features, training) to float32 logits
# (batch, classes)
CreateModel = Callable[[Any, DataSpec, int], Any]
# (logits, labels, params) -> the loss of each example, float32 (batch,)
Losses = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class ModelDefinition:
    """The contents of a model's file.

    Attributes:
        losses: The model's loss; None stands for the softmax cross-entropy.
        own: Whether it is a user's file, whose control flow AutoGraph must compile.
    """

    name: str
    params: type[Params]
    create_model: CreateModel
    losses: Losses | None = None
    own: bool = False


def built_in_models() -> list[str]:
    """Return the names of the built-in models."""
    return sorted(m.name for m in pkgutil.iter_modules(models.__path__) if m.ispkg)


def load_model(name: str) -> ModelDefinition:
    """Load the model called `name`, or the file NAME.py. Raises InputError if there is none."""
    if name.endswith(".py"):
        return _definition(name, _load_file(Path(name)), own=True)
    if name not in built_in_models():
        raise InputError(
            f"--model={name}: unknown{suggest(name, built_in_models())}; expected "
            f"{', '.join(built_in_models())} or the path of a .py file"
        )
    return _definition(name, importlib.import_module(f"tpu_training.models.{name}"))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"--model={path}: there is no such file")
    name = f"training_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look up their fields' types there.
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"--model={path}: {type(error).__name__}: {error}") from error
    return module


def _definition(name: str, module: ModuleType, own: bool = False) -> ModelDefinition:
    params = getattr(module, "Params", None)
    create_model = getattr(module, "create_model", None)
    problems = []
    if not (isinstance(params, type) and issubclass(params, Params) and is_dataclass(params)):
        problems.append("a dataclass `Params` derived from tpu_training.models.params.Params")
    if not callable(create_model):
        problems.append("a function `create_model(params, spec, seed)`")
    if problems:
        raise InputError(f"--model={name}: lacks {' and '.join(problems)}")
    assert params
    assert create_model
    return ModelDefinition(name, params, create_model, getattr(module, "losses", None), own)
