"""The parameters of a training job: defaults, ranges, and overrides by file or command line.

Loads no TensorFlow.
"""

import dataclasses
import difflib
import inspect
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, ClassVar, get_args, get_type_hints

from tpu_training.errors import InputError, ParamsError


def param(
    default: Any,
    description: str,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a parameter; the range includes `low` and `high`."""
    metadata = {"description": description, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


NO_AUGMENTATION, PAD_CROP_FLIP, RESIZED_CROP_FLIP = "none", "pad_crop_flip", "resized_crop_flip"
CACHE_AUTO, CACHE_MEMORY, CACHE_NONE = "auto", "memory", "none"
EXACT, STREAM, FAST = "exact", "stream", "fast"
ALL, TRAINED = "all", "trained"
TENSORFLOW, JAX = "tensorflow", "jax"
LARGEST_IMAGE = 4096
# The types of parameters, as messages call them; others are made of these: X | None, tuple[X, ...].
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word, in quotes",
}


@dataclass(frozen=True, kw_only=True)
class MachineParams:
    """Parameters of the machine."""

    backend: str = param(
        TENSORFLOW,
        "what runs the steps; jax takes the TPU in this machine, or in each host of a slice",
        choices=(TENSORFLOW, JAX),
    )
    precision: str = param(
        "auto",
        "type of the model's arithmetic; auto is bfloat16 on TPUs, float32 elsewhere",
        choices=("auto", "float32", "bfloat16"),
    )
    gradient_accumulation: int = param(
        1, "parts that each replica's batch is split into, to save memory", 1, 4096
    )
    cache: str = param(
        CACHE_AUTO,
        "keep training examples in memory; auto: up to 512 MiB",
        choices=(CACHE_AUTO, CACHE_MEMORY, CACHE_NONE),
    )
    order: str = param(
        EXACT,
        "order of the examples; stream reads files as `data convert` writes them to a bucket; fast "
        "takes any that is ready, which is not repeatable",
        choices=(EXACT, STREAM, FAST),
    )
    eager: bool = param(
        False, "run the model's Python in every step, for a debugger; slow, without a TPU only"
    )
    local_devices: int = param(0, "without a TPU: logical CPUs of this machine; 0: one", 0, 64)
    # A TPU VM's metadata says it; a TPU that is reached over gRPC doesn't.
    tpu_type: str = param(
        "", "accelerator type, such as v5litepod-8, for the share of its peak (MFU)"
    )
    steps_per_loop: int = param(0, "most steps per loop; 0: as many as take 1 s", 0, 1_000_000)
    hang_timeout: float = param(
        1800.0,
        "end, for a restart, after this many seconds without a finished loop; 0: never",
        0,
        1e6,
    )
    connect_tries: int = param(40, "attempts to reach a TPU, connect_interval apart", 1, 100_000)
    connect_interval: float = param(
        10.0, "longest pause between two attempts, in seconds", 0.01, 600
    )
    profile_steps: str = param("", "steps to profile, as FIRST:LAST; SIGUSR1 profiles the next 20")


@dataclass(frozen=True, kw_only=True)
class OptimizerParams:
    """Parameters of the optimizer."""

    optimizer: str = param(
        "adam",
        "adam (with weight decay: AdamW), sgd, nesterov (sgd with its momentum), lars",
        choices=("adam", "sgd", "nesterov", "lars"),
    )
    learning_rate: float = param(0.004, "peak of the learning rate", 1e-9, 100.0)
    warmup_fraction: float = param(0.2, "part of the steps that warm up to the peak", 0, 0.9)
    schedule: str = param(
        "cosine",
        "after the warm-up: constant, or cosine or linear to 0",
        choices=("constant", "cosine", "linear"),
    )
    momentum: float = param(0.9, "momentum; adam's decay rate of gradients", 0, 0.9999)
    squares_momentum: float = param(
        0.999, "adam's decay rate of squares; 0.99 suits runs of a few hundred steps", 0, 0.99999
    )
    weight_decay: float = param(
        0.0, "decay of all weights except biases and normalisations", 0, 10.0
    )
    clip_norm: float = param(0.0, "largest global norm of the gradients; 0 does not clip", 0, 1e6)
    rate_factors: str = param("", "factors of the rate, PATTERN=FACTOR,…; the last match counts")
    freeze: str = param(
        "", "variables not to train: patterns separated by commas; !PATTERN trains some again"
    )
    ema_decay: float = param(
        0.0, "decay of the averaged weights for evaluation, best and export; 0: none", 0, 0.999999
    )


@dataclass(frozen=True, kw_only=True)
class Params(OptimizerParams, MachineParams):
    """Parameters of the job; a model's own Params adds to them.

    `by_optimizer` has the defaults of parameters that an optimizer other than the model's own
    wants, such as its rate; a model's own add to these.
    """

    by_optimizer: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # A thousandth of it is a step's part of the weights; trials: docs/sizing.md.
        "lars": {"learning_rate": 3.2},
    }

    epochs: float = param(3.0, "passes over the training set", 0.001, 100_000)
    steps: int = param(0, "steps of the training, whatever `epochs` is; 0: by `epochs`", 0, 1 << 40)
    tokens: float = param(
        0, "the same as tokens of texts, with their padding, such as 1e9; 0: by `epochs`", 0, 1e18
    )
    limit_batches: int = param(
        0, "for a trial: at most this many steps, and batches of an evaluation; 0: all", 0, 1 << 40
    )
    global_batch_size: int = param(256, "examples per step over all replicas", 1, 1 << 20)
    evaluation_batch_size: int = param(2048, "examples per step in evaluations", 1, 1 << 20)
    label_smoothing: float = param(0.0, "part of each label to spread over all classes", 0, 0.9)
    # 0: by what one costs and how often TPUs are preempted.
    checkpoint_interval: int = param(
        0, "steps between checkpoints; 0: as often as their cost allows", 0, 1 << 40
    )
    evaluation_interval: int = param(0, "steps between evaluations; 0: at the end", 0, 1 << 40)
    validation_fraction: float = param(
        0.0,
        "part of the training set to hold out for validation; 0: a tenth, if evaluation_interval "
        "is set and the dataset has no split validation",
        0,
        0.9,
    )
    patience: int = param(
        0, "end after this many evaluations without a better one; 0: never", 0, 1 << 20
    )
    snapshot_interval: int = param(
        1000,
        "steps between weights and gradients in TensorBoard; 0: none, nor graph and images",
        0,
        1 << 40,
    )
    keep_checkpoints: int = param(3, "checkpoints to keep; the oldest is deleted first", 1, 1000)
    checkpoint_weights: str = param(
        ALL,
        "weights in checkpoints; trained: without frozen ones, which the model's code or init_from "
        "brings again",
        choices=(ALL, TRAINED),
    )
    seed: int = param(0, "seed of weights, order, augmentation and dropout", 0, 2**31 - 1)
    image_size: int = param(0, "height and width of images; 0: as they are", 0, LARGEST_IMAGE)
    augmentation: str = param(
        NO_AUGMENTATION,
        "for training images: pad_crop_flip for small ones, resized_crop_flip for photographs",
        choices=(NO_AUGMENTATION, PAD_CROP_FLIP, RESIZED_CROP_FLIP),
    )
    overfit_batches: int = param(
        0,
        "train on the first batches alone, to see if the model can learn them; 0: all",
        0,
        1 << 20,
    )
    init_from: str = param(
        "",
        "first weights: a model directory or checkpoint of this trainer, a TensorFlow "
        "checkpoint, .weights.h5, .keras or .safetensors; a resumed training's own checkpoint "
        "counts first",
    )
    init_map: str = param(
        "",
        "names in init_from that differ, THEIRS=OURS,… with * for any part; bert: those of Hugging "
        "Face's BERT",
    )
    mixup: float = param(0.0, "a of mixup's Beta(a, a), such as 0.2; 0: no mixup", 0, 100)
    cutmix: float = param(0.0, "a of CutMix's Beta(a, a), such as 1; 0: no CutMix", 0, 100)
    callback: str = param(
        "", "a .py file with create_callbacks(job); its callbacks run between loops"
    )

    def part_batch_size(self, replicas: int) -> int:
        """Return how many examples a replica processes at a time.

        Raises:
            InputError: The batch does not divide; the message names the nearest sizes that do.
        """
        share = self.replica_batch_size(replicas)
        if share % self.gradient_accumulation:
            raise InputError(
                f"--global_batch_size={self.global_batch_size} gives each of the {replicas} "
                f"replicas {share}, which is not divisible by "
                f"--gradient_accumulation={self.gradient_accumulation}; use "
                f"{_nearest(self.global_batch_size, replicas * self.gradient_accumulation)}"
            )
        return share // self.gradient_accumulation

    def replica_batch_size(self, replicas: int, name: str = "global_batch_size") -> int:
        """Return one replica's share of the batch size called `name`.

        Raises:
            InputError: It does not divide; the message names the nearest sizes that do.
        """
        size = int(getattr(self, name))
        share, remainder = divmod(size, replicas)
        if remainder:
            raise InputError(
                f"--{name}={size} is not divisible by the {replicas} replicas in sync; "
                f"use {_nearest(size, replicas)}"
            )
        return share


def changed(name: str, default: Any) -> Any:
    """Redeclare the parameter `name` of Params with another default."""
    metadata = Params.__dataclass_fields__[name].metadata
    return dataclasses.field(default=default, metadata=metadata)


def build_params(
    config: Mapping[str, Any],
    overrides: Iterable[tuple[str, str]],
    other_flags: Iterable[str] = (),
    kind: type[Params] = Params,
) -> Params:
    """Apply `config` (a file's content) and then `overrides` to the defaults of `kind`.

    Names may be written with `-` or `_`.

    Raises:
        ParamsError: With every problem at once: unknown names, with the nearest of the parameters
            and `other_flags`; wrong types; values out of range.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    sources = [(f"{name} (in --config)", name, value) for name, value in config.items()]
    sources += [(f"--{name}", name, value) for name, value in overrides]
    types = _types(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for label, written, value in sources:
        name = str(written).replace("-", "_")
        if name not in fields:
            problems.append(f"{label}: unknown{suggest(name, [*fields, *other_flags], '--')}")
            continue
        try:
            values[name] = convert(value, types[name])
            check(values[name], fields[name].metadata)
        except ValueError as error:
            problems.append(f"{label}={value}: {error}")
    if problems:
        raise ParamsError(problems)
    # An optimizer has defaults of its own; the model's for it count before those of every model.
    usual = fields["optimizer"].default
    optimizer = values.get("optimizer", usual)
    wanted = [each.by_optimizer.get(optimizer, {}) for each in (Params, kind)]
    defaults = {**wanted[0], **wanted[1]} if optimizer != usual else {}
    return kind(**{**defaults, **values})


def describe_params(kind: type[Params] = Params) -> str:
    """Return the help text: by group, a line per parameter with name, default and meaning."""
    titles: dict[type, str] = {
        Params: "parameters of the job",
        OptimizerParams: "of the optimizer",
        MachineParams: "of the machine",
    }
    groups: dict[str, list[str]] = {title: [] for title in (*titles.values(), "of the model")}
    for field in dataclasses.fields(kind):
        owners = (title for group, title in titles.items() if field.name in _declared(group))
        value = field.default if isinstance(field.default, str) else json.dumps(field.default)
        line = f"  --{field.name}={value}".ljust(34) + field.metadata["description"]
        groups[next(owners, "of the model")].append(line)
    text = ["Parameters, on the command line as --name=value, or in a --config file"]
    for title, lines in groups.items():
        if lines:
            text += ["", f"{title}:", *lines]
    return "\n".join(text)


def _nearest(size: int, divisor: int) -> str:
    """Return the multiples of `divisor` below and above `size`."""
    below = size // divisor * divisor
    # 0 is a multiple, but no size.
    return " or ".join(str(multiple) for multiple in (below, below + divisor) if multiple)


def suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message: the nearest of `known`, or where to find all names."""
    names = {candidate.replace("-", "_"): candidate for candidate in known}
    nearest = difflib.get_close_matches(name, names, n=1)
    if not nearest:
        return "; see --help for all names"
    return f"; did you mean {prefix}{names[nearest[0]]}?"


def convert(value: Any, kind: Any) -> Any:
    """Convert a flag's text or a file's value to `kind`. Raises ValueError with the expectation."""
    inner = [each for each in get_args(kind) if each not in (NoneType, Ellipsis)]
    try:
        if NoneType in get_args(kind):
            none = value is None or str(value).lower() == "none"
            return None if none else convert(value, inner[0])
        if inner:
            parts = value.split(",") if isinstance(value, str) and value else value or ()
            parts = parts if isinstance(parts, (list, tuple)) else (parts,)
            return tuple(convert(each, inner[0]) for each in parts)
    except ValueError as error:
        more = ", or none" if NoneType in get_args(kind) else "; several with commas between"
        raise ValueError(f"{error}{more}") from None
    expected = KINDS.get(kind, "bool, int, float or str as its type")
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    # A bool is an int to Python, but no number. And 10:20 is 620 to YAML.
    taken = (int, float, str) if kind in (int, float) else (str,) if kind is str else ()
    if isinstance(value, bool) or not isinstance(value, taken):
        raise ValueError(f"expected {expected}")
    try:
        # JSON's 1e3 is a float, and whole.
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        converted = kind(value)
        # NaN lies outside of every range, so the message would name a wrong bound.
        if kind is float and not math.isfinite(converted):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f"expected {expected}") from None
    return converted


def check(value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise ValueError with the expectation if `value`, or a part of it, is out of range."""
    if isinstance(value, tuple):
        for each in value:
            check(each, metadata)
        return
    choices, low, high = metadata["choices"], metadata["low"], metadata["high"]
    if choices and value not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}")
    if isinstance(value, (int, float)) and not low <= value <= high:
        bounds = f"at least {low:g}" if value < low else f"at most {high:g}"
        raise ValueError(f"must be {bounds}")


# The optimizer that `compile` gave, or adam.
KERAS_AUTO = "auto"
_OPTIMIZERS = Params.__dataclass_fields__["optimizer"].metadata["choices"]


@dataclass(frozen=True, kw_only=True)
class KerasParams(Params):
    """Those of every model; a file that has no `Params` takes these."""

    optimizer: str = param(
        KERAS_AUTO,
        "auto: the optimizer that the Keras model was compiled with, at its own learning rate, "
        "else adam; or " + ", ".join(_OPTIMIZERS),
        choices=(KERAS_AUTO, *_OPTIMIZERS),
    )


# What rematerialisation computes again for the gradients, instead of keeping it.

NO_REMAT, REMAT_BLOCKS = "none", "blocks"


def remat_param() -> Any:
    """Declare the parameter `remat` of a model that has blocks."""
    return param(
        NO_REMAT,
        "blocks: compute each block twice, to keep only its input until its gradients are needed",
        choices=(NO_REMAT, REMAT_BLOCKS),
    )


def field_problems(kind: type[Params]) -> list[str]:
    """Return `LINE: problem` for each field of `kind` that is no parameter.

    Raises:
        ParamsError: The types of some are no types.
    """
    types = _types(kind)
    return [
        f"{_line(kind, field.name)}: {field.name}: {problem}"
        for field in dataclasses.fields(kind)
        if (problem := _problem(field, types[field.name]))
    ]


def _types(kind: type[Params]) -> dict[str, Any]:
    """Return the types of the fields. Raises ParamsError with FILE:LINE of those that are none."""
    types, problems = dict[str, Any](), list[str]()
    for field in dataclasses.fields(kind):
        owner = _owner(kind, field.name)
        one = SimpleNamespace(__annotations__={field.name: owner.__annotations__[field.name]})
        try:
            types |= get_type_hints(one, {**vars(owner), **vars(sys.modules[owner.__module__])})
        except Exception as error:  # It is the user's code.
            place = f"{inspect.getsourcefile(owner)}:{_line(kind, field.name)}"
            problems.append(f"{place}: {field.name}: {type(error).__name__}: {error}")
    if problems:
        raise ParamsError(problems)
    return types


def _problem(field: dataclasses.Field[Any], kind: type) -> str:
    """Return what is wrong with the declaration of a field, with its cure; "" for nothing."""
    inner = {*get_args(kind)} - {NoneType, Ellipsis}
    if kind not in KINDS and not (len(inner) == 1 < len(get_args(kind)) and inner <= {*KINDS}):
        name = kind.__name__ if isinstance(kind, type) else kind
        return (
            f"its type {name} doesn't fit a command line; expected bool, int, float, str, one of "
            "them or None, or a tuple of one such as tuple[int, ...]"
        )
    if "description" not in field.metadata:
        default = "DEFAULT" if field.default is dataclasses.MISSING else repr(field.default)
        if field.name in Params.__dataclass_fields__:
            return f'declare it with base.changed("{field.name}", {default})'
        return f'declare it with base.param({default}, "what it means")'
    try:
        check(convert(field.default, kind), field.metadata)
    except ValueError as error:
        return f"its default {field.default!r}: {error}"
    return ""


def _declared(kind: type) -> Iterable[str]:
    """Return the names of the fields that `kind` itself declares."""
    names: Iterable[str] = vars(kind).get("__annotations__", ())
    return names


def _owner(kind: type, name: str) -> type:
    """Return the class or base class that declares `name`."""
    return next(each for each in kind.__mro__ if name in _declared(each))


def _line(kind: type, name: str) -> int:
    """Return the line that declares `name`."""
    lines, first = inspect.getsourcelines(_owner(kind, name))
    return first + next((n for n, line in enumerate(lines) if re.match(rf"\s+{name}\s*:", line)), 0)


def split_overrides(rest: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split each `--name=value`; also return a problem for each argument of another form."""
    problems, overrides = [], []
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name.startswith("--") and equals:
            overrides.append((name.removeprefix("--"), value))
        else:
            problems.append(f"{argument}: expected --name=value")
    return overrides, problems


def parse_steps(value: str) -> tuple[int, int] | None:
    """Return FIRST and LAST of `profile_steps`, None for "". Raises InputError for others."""
    if not value:
        return None
    first, _, last = value.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise InputError(f"--profile_steps={value}: expected FIRST:LAST, such as 100:120")
    return int(first), int(last)


def read_config(path: str | None) -> dict[str, Any]:
    """Return the parameters in a YAML or JSON file. Raises InputError."""
    return {} if path is None else read_mapping(path, "--config")


def read_mapping(path: str, flag: str) -> dict[str, Any]:
    """Return the names and values in the YAML or JSON file that `flag` names. Raises InputError."""
    given = f"{flag}={path}"
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{given}: can't be read ({error})") from error
    kind = "JSON" if path.endswith(".json") else "YAML"
    try:
        content = json.loads(text) if kind == "JSON" else _parse_yaml(text, given)
    except ValueError as error:
        raise InputError(f"{given}: is not {kind} ({error})") from error
    if not (content is None or isinstance(content, dict)):
        raise InputError(f"{given}: expected `name: value` lines, found {content!r}")
    return content or {}


def _parse_yaml(text: str, given: str) -> object:
    """Return the content; a machine that trains may lack PyYAML, which the wheel doesn't need."""
    try:
        import yaml
    except ImportError as error:
        raise InputError(
            f"{given}: needs PyYAML, which is not installed; use a .json file"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from error
