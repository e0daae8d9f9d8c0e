"""The model that `--model` names: a built-in one, or a user's file.

Loads no TensorFlow before a network is created, unless the user's file does, so that --help and
wrong input are answered at once. The networks of the built-in models are in networks.py.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from tpu_training.errors import InputError, user_line
from tpu_training.models import params as base
from tpu_training.models.spec import DataSpec, Losses, Task, flat_outputs, image_shape, text_length

if TYPE_CHECKING:
    import tensorflow as tf

DEFAULT_MODEL = "mnist_cnn"
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
        task: The task or its name; "" stands for the usual one of the dataset's targets.
    """

    name: str
    params: type[base.Params]
    create_model: CreateModel
    losses: Losses | None = None
    own: bool = False
    task: str | Task = ""


def load_model(name: str) -> ModelDefinition:
    """Load the model called `name`, or the file NAME.py. Raises InputError if there is none."""
    if name.endswith(".py"):
        return _definition(name, load_file(name, "model"))
    if name not in BUILT_IN:
        raise InputError(
            f"--model={name}: unknown{base.suggest(name, BUILT_IN)}; expected "
            f"{', '.join(BUILT_IN)}, or the path of a .py file"
        )
    return _BUILT_IN[name]


def load_file(name: str, flag: str) -> ModuleType:
    """Import the user's file that `--flag` names. Raises InputError with the line of a fault."""
    path = Path(name)
    if not path.is_file():
        raise InputError(f"--{flag}={path}: there is no such file")
    # A name of its own, so that a user's `keras.py` or `model.py` hides no installed module.
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


def _definition(name: str, module: ModuleType) -> ModelDefinition:
    """Return what the user's file defines. Raises InputError with all that it lacks."""
    params = getattr(module, "Params", base.KerasParams)
    create_model = getattr(module, "create_model", None)
    problems = []
    if not (isinstance(params, type) and issubclass(params, base.Params) and is_dataclass(params)):
        problems.append("a dataclass `Params` derived from tpu_training.models.params.Params")
    if not callable(create_model):
        problems.append("a function `create_model(params, spec, seed)`")
    if problems:
        raise InputError(f"--model={name}: lacks {' and '.join(problems)}")
    assert create_model
    if problems := base.field_problems(params):
        raise InputError("; ".join(f"{name}:{problem}" for problem in problems))
    losses, task = getattr(module, "losses", None), getattr(module, "task", "")
    create_model = with_all_arguments(name, create_model)
    return ModelDefinition(name, params, create_model, losses, True, task)


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


# The built-in models: the parameters of each, with other defaults, and what creates its network.

# The blocks in each stage of a ResNet, by depth: for images like ImageNet's, and like CIFAR's.
LARGE = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
SMALL = {8: (1, 1, 1), 14: (2, 2, 2), 20: (3, 3, 3), 32: (5, 5, 5), 44: (7, 7, 7), 56: (9, 9, 9)}


@dataclass(frozen=True, kw_only=True)
class MnistCnnParams(base.Params):
    """The defaults of every model but for a run of some hundred steps: MNIST in three epochs."""

    squares_momentum: float = base.changed("squares_momentum", 0.99)


def create_mnist_cnn(params: MnistCnnParams, spec: DataSpec, seed: int) -> tf.Module:
    """Build the network for images of any size."""
    from tpu_training.models.networks import MnistCnn

    return MnistCnn(image_shape(spec), flat_outputs(spec, "mnist_cnn"), params.precision, seed)


@dataclass(frozen=True, kw_only=True)
class BertParams(base.Params):
    """AdamW with a linear schedule, as in BERT's training.

    The default of two layers of 128 is the size of BERT-Tiny (arXiv:1908.08962).
    """

    by_optimizer: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "lars": {"learning_rate": 1.0},
    }
    layers: int = base.param(2, "encoder layers", 1, 48)
    hidden_size: int = base.param(128, "size of a token's vector, a multiple of heads", 8, 4096)
    heads: int = base.param(2, "heads of self-attention", 1, 64)
    dropout: float = base.param(0.1, "dropout rate in training", 0, 0.9)
    remat: str = base.remat_param()
    learning_rate: float = base.changed("learning_rate", 1e-3)
    schedule: str = base.changed("schedule", "linear")
    warmup_fraction: float = base.changed("warmup_fraction", 0.1)
    weight_decay: float = base.changed("weight_decay", 0.01)
    clip_norm: float = base.changed("clip_norm", 1.0)


def create_bert(params: BertParams, spec: DataSpec, seed: int) -> tf.Module:
    """Build the network. Raises InputError if the hidden size is not a multiple of the heads."""
    if params.hidden_size % params.heads:
        raise InputError(
            f"--hidden_size={params.hidden_size} is not divisible by --heads={params.heads}; "
            f"use {max(1, params.hidden_size // params.heads) * params.heads}"
        )
    length, per_token = text_length(spec), len(spec.output_shape) > 1
    outputs = spec.output_shape[-1] if per_token else flat_outputs(spec, "bert")
    from tpu_training.models.networks import Bert

    texts = (spec.causal, spec.start, spec.padding)
    return Bert(params, length, spec.vocabulary, outputs, seed, per_token, *texts)


@dataclass(frozen=True, kw_only=True)
class ResNetParams(base.Params):
    """SGD with momentum as in public ResNet-50 recipes: a rate of 0.1 per 256 examples."""

    by_optimizer: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The weight decay of timm's recipes with AdamW (arXiv:2201.03545, appendix A).
        "adam": {"learning_rate": 0.001, "weight_decay": 0.05},
        # https://github.com/tensorflow/tpu, models/official/resnet/lars_util.py, below 16,384.
        "lars": {"learning_rate": 10.0},
    }
    depth: int = base.param(
        50,
        f"{', '.join(map(str, SMALL))} for images like CIFAR's, "
        f"{', '.join(map(str, LARGE))} for those like ImageNet's",
        min(SMALL),
        max(LARGE),
    )
    width: int = base.param(1, "factor of the channels, as in wide residual networks", 1, 16)
    remat: str = base.remat_param()
    batch_norm: str = base.param(
        "replica",
        "what normalises: each replica's part of the batch, or all_replicas",
        choices=("replica", "all_replicas"),
    )
    optimizer: str = base.changed("optimizer", "sgd")
    learning_rate: float = base.changed("learning_rate", 0.1)
    warmup_fraction: float = base.changed("warmup_fraction", 0.05)
    weight_decay: float = base.changed("weight_decay", 1e-4)
    label_smoothing: float = base.changed("label_smoothing", 0.1)


def create_resnet(params: ResNetParams, spec: DataSpec, seed: int) -> tf.Module:
    """Build the network for images of any size.

    Raises:
        InputError: There is no such depth, or a parameter excludes another one.
    """
    if params.depth not in LARGE | SMALL:
        raise InputError(
            f"--depth={params.depth}: no ResNet has that depth; expected one of "
            f"{', '.join(map(str, sorted(LARGE | SMALL)))}"
        )
    channels = image_shape(spec)[2]
    if params.batch_norm != "replica" and params.gradient_accumulation > 1:
        raise InputError(
            f"--batch_norm={params.batch_norm} "
            f"--gradient_accumulation={params.gradient_accumulation}: parts of a batch pass one "
            "after the other, so a part can't use the whole batch's statistics; omit one of the "
            "two"
        )
    from tpu_training.models.networks import ResNet

    large, stages = params.depth in LARGE, (LARGE | SMALL)[params.depth]
    return ResNet(params, stages, large, channels, flat_outputs(spec, "resnet"), seed)


_BUILT_IN = {
    "bert": ModelDefinition("bert", BertParams, create_bert),
    DEFAULT_MODEL: ModelDefinition(DEFAULT_MODEL, MnistCnnParams, create_mnist_cnn),
    "resnet": ModelDefinition("resnet", ResNetParams, create_resnet),
}
BUILT_IN = tuple(_BUILT_IN)
