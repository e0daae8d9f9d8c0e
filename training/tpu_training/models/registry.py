"""Find the model that `--model` names: a built-in one or a user's file.

Loads no TensorFlow unless the user's file does.
"""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tpu_training.errors import InputError
from tpu_training.errors.catalog import user_line
from tpu_training.models.params import KerasParams, Params, field_problems, suggest
from tpu_training.models.spec import DataSpec
from tpu_training.models.task import Losses, Task

DEFAULT_MODEL = "mnist_cnn"
# Each is a module next to this one.
BUILT_IN = ("bert", DEFAULT_MODEL, "resnet")
_ARGUMENTS = ("params", "spec", "seed")

# (params, data, seed) -> a tf.Module that maps (features, training) to float32 logits
# (batch, classes), or a Keras model
CreateModel = Callable[[Any, DataSpec, int], Any]


@dataclass(frozen=True)
class ModelDefinition:
    """The contents of a model's file.

    Attributes:
        losses: The model's loss; None stands for the task's.
        own: Whether it is a user's file, whose control flow AutoGraph must compile.
        task: The task or its name; "" stands for the usual one of the data set's targets.
    """

    name: str
    params: type[Params]
    create_model: CreateModel
    losses: Losses | None = None
    own: bool = False
    task: str | Task = ""


def load_model(name: str) -> ModelDefinition:
    """Load the model called `name`, or the file NAME.py. Raises InputError if there is none."""
    if name.endswith(".py"):
        return _definition(name, load_file(name, "model"), own=True)
    if name not in BUILT_IN:
        raise InputError(
            f"--model={name}: unknown{suggest(name, BUILT_IN)}; expected "
            f"{', '.join(BUILT_IN)} or the path of a .py file"
        )
    return _definition(name, importlib.import_module(f"tpu_training.models.{name}"))


def load_file(name: str, flag: str) -> ModuleType:
    """Import the user's file that `--flag` names. Raises InputError with the line of a fault."""
    path = Path(name)
    if not path.is_file():
        raise InputError(f"--{flag}={path}: there is no such file")
    name = f"training_{flag}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look up their fields' types there.
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        file, _, number = user_line(error).rpartition(":")
        line = f"line {number}: " if file == str(path) else f"{file}:{number}: " if file else ""
        message = getattr(error, "msg", error)
        raise InputError(f"--{flag}={path}: {line}{type(error).__name__}: {message}") from error
    return module


def _definition(name: str, module: ModuleType, own: bool = False) -> ModelDefinition:
    params = getattr(module, "Params", KerasParams)
    create_model = getattr(module, "create_model", None)
    problems = []
    if not (isinstance(params, type) and issubclass(params, Params) and is_dataclass(params)):
        problems.append("a dataclass `Params` derived from tpu_training.models.params.Params")
    if not callable(create_model):
        problems.append("a function `create_model(params, spec, seed)`")
    if problems:
        raise InputError(f"--model={name}: lacks {' and '.join(problems)}")
    assert create_model
    if own and (problems := field_problems(params)):
        raise InputError("; ".join(f"{name}:{problem}" for problem in problems))
    losses, task = getattr(module, "losses", None), getattr(module, "task", "")
    create_model = with_all_arguments(name, create_model)
    return ModelDefinition(name, params, create_model, losses, own, task)


def with_all_arguments(name: str, create_model: Callable[..., Any]) -> CreateModel:
    """Return `create_model`, which may leave out any of its arguments, such as `seed`."""
    arguments = inspect.signature(create_model).parameters
    taken = list(arguments)
    gathers = any(argument.kind is argument.VAR_POSITIONAL for argument in arguments.values())
    if gathers or len(taken) == len(_ARGUMENTS):
        return create_model
    if others := [argument for argument in taken if argument not in _ARGUMENTS]:
        raise InputError(
            f"--model={name}: create_model takes {', '.join(others)}; expected "
            f"{', '.join(_ARGUMENTS)} or some of them"
        )

    @functools.wraps(create_model)
    def create(*values: Any) -> Any:
        given = dict(zip(_ARGUMENTS, values, strict=True))
        return create_model(**{argument: given[argument] for argument in taken})

    return create
