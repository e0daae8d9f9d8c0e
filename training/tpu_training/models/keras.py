"""A user's Keras 3 model as the loop takes any model: a tf.Module that maps features to logits.

Its variables become those of the module, and a call has no side effects: in a keras.StatelessScope
an assignment changes nothing but what the scope knows. Batch normalisation's averages go to
`record_statistic`, and each seed generator starts from a seed of the step, so that a repeated step
draws the same numbers. Keras is imported only where the user's own file has loaded it.
"""

import dataclasses
import importlib
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.spec import CLASS, NUMBERS, DataSpec
from tpu_training.models.step_context import next_seed, record_penalty, record_statistic

# What a model may do with probabilities that leaves their order as it is.
_SHAPE = ("Reshape", "Squeeze", "ExpandDims", "Cast", "Identity")
# The operations at a model's end whose input are logits, as Keras' own losses look for them.
_ACTIVATIONS = {"Softmax": "softmax", "Sigmoid": "sigmoid"}
_SEED, _LARGEST_SEED = "seed_generator_state", 2**31 - 1
_UNKNOWN = (
    "in a step, the model changes a variable that isn't its own; random numbers need `seed=` a "
    "keras.random.SeedGenerator that is an attribute of the layer, and a state needs `add_weight`"
)
_FLOAT32 = "float32"
# The packages that have been called Keras; tf_keras and the keras of TensorFlow up to 2.15 are 2.
_PACKAGES = ("keras", "tf_keras")
_CURE = (
    "a model needs Keras 3; install TensorFlow 2.16 or later, `import keras` in the file, and "
    "unset TF_USE_LEGACY_KERAS"
)
# Methods of keras.Model that `fit` calls and this package's loop does not.
_OF_FIT = ("train_step", "compute_loss")


class KerasModule(tf.Module):  # type: ignore[misc]
    """Holds the variables of a Keras model that is built, and calls it.

    Its outputs are the model's in float32, but logits where the model ends in softmax or sigmoid;
    and two of them where the model gives one for two classes: 0, and the logit of the second class.

    Attributes:
        where: FILE:LINE of the function that created the model.
    """

    def __init__(
        self, model: Any, where: str, dtype: Any, *, shapes: Any, one_for_two: bool, logits: bool
    ) -> None:
        """Adapt `model`, which is built.

        Args:
            model: The Keras model.
            where: See the class.
            dtype: The type of its features, in a dictionary by name if there are several.
            shapes: The shape of its output for an example, or of each by name.
            one_for_two: Whether its one output tells one of two classes from the other.
            logits: Whether softmax and sigmoid at its end are left out.
        """
        super().__init__()
        # Keras' variables, but for those of seed generators, each with TensorFlow's.
        pairs = [(v, v.value) for v in model.variables if not _is_seed(v)]
        place(self, model, pairs)
        trained = {id(variable) for variable in model.trainable_variables}
        self.where = where
        # Held by functions, as TensorFlow would look for variables in them.
        self.keras: Callable[[], Any] = lambda: model
        self.trained_pairs: Callable[[], list[tuple[Any, tf.Variable]]] = lambda: [
            pair for pair in pairs if id(pair[0]) in trained
        ]
        self._forward = create_forward(model, where)
        # A function, as TensorFlow would wrap a dictionary that is an attribute.
        self._dtypes: Callable[[], Any] = lambda: dtype
        self._one_for_two, self._logits = one_for_two, logits
        self.output_shapes: Callable[[], Any] = lambda: shapes
        self._activation = ""
        # What is left out at the end is found in a graph.
        self._compiled = tf.function(self._call, autograph=False)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """TensorFlow's variables that are trained: a Keras layer may have `trainable = False`."""
        trained = {id(value) for _, value in self.trained_pairs()}
        return tuple(variable for variable in self.variables if id(variable) in trained)

    @property
    def fixed(self) -> frozenset[int]:
        """The ids of TensorFlow's variables that would be trained, but are frozen by a layer."""
        layers = self.keras()._flatten_layers()
        own = {id(each) for layer in layers for each in layer._trainable_variables}
        every = self.keras().non_trainable_variables
        return frozenset(id(each.value) for each in every if id(each) in own)

    def freeze(self, frozen: Container[int]) -> None:
        """Let batch normalisation use its averages where their ids are among the `frozen`."""
        for layer in self.keras()._flatten_layers():
            mean = getattr(layer, "moving_mean", None)
            if mean is not None and id(mean.value) in frozen:
                layer.trainable = False

    def __call__(self, features: Any, training: bool) -> tf.Tensor:
        """Map features to outputs."""
        call = self._compiled if tf.executing_eagerly() else self._call
        return call(features, training)

    def activated(self, outputs: tf.Tensor) -> tf.Tensor:
        """Turn what `__call__` gave into what the Keras model gave, for Keras' own losses."""
        if self._one_for_two:
            outputs = outputs[..., 1:]
        if not self._activation:
            return outputs
        import keras

        # Keras keeps the logits with the result, from which its losses are exact.
        return getattr(keras.activations, self._activation)(outputs)

    def _call(self, features: Any, training: bool) -> tf.Tensor:
        # A functional model may use some of the inputs only.
        types = self._dtypes()
        given = {name: features[name] for name in types} if isinstance(types, dict) else features
        inputs = tf.nest.map_structure(tf.cast, given, types)
        outputs = self._forward(inputs, training)
        logits = self._without_activation(outputs)
        if self._one_for_two:
            logits = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        return logits

    def _without_activation(self, outputs: Any) -> Any:
        """Return the model's outputs as float32; remember the function that logits lack."""
        if isinstance(outputs, Mapping):
            return {name: tf.cast(each, tf.float32) for name, each in outputs.items()}
        if tf.executing_eagerly():
            return tf.cast(self._eager_logits(outputs), tf.float32)
        source = outputs.op
        while source.type in _SHAPE:
            source = source.inputs[0].op
        self._activation = _ACTIVATIONS.get(source.type, "") if self._logits else ""
        if not self._activation:
            return tf.cast(outputs, tf.float32)
        logits = source.inputs[0]
        if source.type == "Softmax" and logits.shape[-1] != outputs.shape[-1]:
            raise InputError(
                f"{self.where}: softmax is over {logits.shape[-1]} classes, but the outputs have "
                f"{outputs.shape[-1]} in their last axis; put the change of shape before softmax"
            )
        return tf.ensure_shape(
            tf.reshape(tf.cast(logits, tf.float32), tf.shape(outputs)), outputs.shape
        )

    def _eager_logits(self, outputs: tf.Tensor) -> tf.Tensor:
        """Invert the function at the end, which only a graph shows apart from its result."""
        if not self._activation:
            return outputs
        least = tf.constant(1e-7, outputs.dtype)
        logits = tf.math.log(tf.maximum(outputs, least))
        if self._activation == "sigmoid":
            logits -= tf.math.log(tf.maximum(1.0 - outputs, least))
        return logits


def adapt(model: Any, spec: DataSpec, where: str) -> KerasModule:
    """Return the Keras `model` as a module for data of `spec`; call in the strategy's scope.

    Raises:
        InputError: With FILE:LINE, `where` the model is made, and everything that is wrong.
    """
    import keras

    _refuse(where, _model_problems(model, spec))
    dtype: Any
    if inputs := getattr(model, "inputs", None):
        _refuse(where, _input_problems(inputs, spec))
        types = [str(tf.as_dtype(each.dtype).name) for each in inputs]
        dtype = dict(zip(_names(inputs), types, strict=True)) if spec.inputs else types[0]
        # `outputs` is a list; what a call returns has names.
        outputs = (
            getattr(model, "_outputs_struct", model.outputs) if spec.several else model.outputs
        )
    else:
        # Pixels become numbers, as layers expect. A model without inputs is built by the call.
        numbers = dataclasses.replace(spec, dtype="float32") if spec.kind == "image" else spec
        dtype = numbers.features(lambda _, own: own)
        given = numbers.features(lambda shape, own: keras.Input(shape, dtype=own))
        outputs = model(given, training=False)
    _refuse(where, [*_output_problems(outputs, spec), *_token_problems(model, spec)])
    one_for_two = tuple(tf.nest.flatten(outputs)[0].shape[1:]) == (1,) and _two_classes(spec)
    logits = spec.targets != NUMBERS
    shapes = {name: tuple(x.shape[1:]) for name, x in outputs.items()} if spec.several else None
    return KerasModule(model, where, dtype, shapes=shapes, one_for_two=one_for_two, logits=logits)


def _refuse(where: str, problems: Iterable[str]) -> None:
    if message := "; ".join(f"{where}: {problem}" for problem in problems):
        raise InputError(message)


def create_forward(model: Any, where: str) -> Callable[[tf.Tensor, bool], tf.Tensor]:
    """Return a function that maps features and `training` to the outputs of `model`."""
    from keras import StatelessScope

    seeds = [variable for variable in model.variables if _is_seed(variable)]
    kept = [variable for variable in model.non_trainable_variables if not _is_seed(variable)]
    # In a scope Keras looks nowhere else for what a regularizer wants.
    penalised = [variable for variable in model.trainable_variables if variable.regularizer]
    known = {id(variable) for variable in (*model.variables, *model.metrics_variables)}

    def forward(features: tf.Tensor, training: bool) -> tf.Tensor:
        given = [(seed, _draw(seed, number, training)) for number, seed in enumerate(seeds)]
        given += [(variable, variable.value) for variable in penalised]
        with StatelessScope(given, collect_losses=training) as scope:
            outputs = model(features, training=training)
            penalties = list(model.losses) if training else []
        if training:
            if set(scope.state_mapping) - known:
                raise InputError(f"{where}: {_UNKNOWN}")
            _record(kept, scope, penalties, where)
        return outputs

    return forward


def _record(kept: Sequence[Any], scope: Any, penalties: Sequence[tf.Tensor], where: str) -> None:
    """Hand what the scope kept to the step: it updates averages once, for all replicas."""
    for variable in kept:
        value = scope.get_current_value(variable)
        if value is None:
            continue
        if not variable.value.dtype.is_floating:
            raise InputError(
                f"{where}: {variable.path} is {variable.dtype} and changes in a step, for which "
                "the replicas' values are averaged; make it float32"
            )
        record_statistic(variable.value, tf.cast(value, variable.dtype), momentum=0.0)
    for penalty in penalties:
        record_penalty(tf.cast(penalty, tf.float32))


def _is_seed(variable: Any) -> bool:
    return bool(variable.name == _SEED)


def _draw(variable: Any, number: int, training: bool) -> tf.Tensor:
    """Return the step's seed for a generator; where nothing is trained, always the same one."""
    seed = tf.bitwise.bitwise_and(next_seed(), _LARGEST_SEED) if training else [number, 0]
    return tf.cast(seed, variable.dtype)


def is_keras_model(model: object, where: str) -> bool:
    """Return whether `model` is a Keras 3 model.

    Raises:
        InputError: It is a model of Keras 2; the message begins with `where`, FILE:LINE.
    """
    keras = _keras_3()
    if keras and isinstance(model, keras.Model):
        return True
    for kind in type(model).__mro__:
        package = kind.__module__.partition(".")[0]
        if kind.__name__ == "Model" and package in _PACKAGES:
            version = getattr(sys.modules.get(package), "__version__", "2")
            raise InputError(f"{where}: the model is of {package} {version}; {_CURE}")
    return False


def is_keras_own(value: object) -> bool:
    """Return whether a function, or the class of an object, comes with Keras."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] == "keras"


@contextmanager
def creation(create_model: Callable[..., Any], seed: int, precision: str) -> Iterator[None]:
    """Let Keras draw first weights from `seed`, and compute in `precision` unless the file sets it.

    Keras takes a seed for each initializer from Python's `random`.
    """
    if _mentions_keras(create_model):
        importlib.import_module("keras")
    keras = _keras_3()
    # The user's own draws elsewhere must not depend on whether a model was created in between.
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    policy: Any = keras.mixed_precision.global_policy() if keras else None
    if keras and policy.name == _FLOAT32 != precision:
        keras.mixed_precision.set_global_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if keras:
            keras.mixed_precision.set_global_policy(policy)


def _keras_3() -> ModuleType | None:
    """Return Keras 3 if it is loaded: nothing here loads it for a model that doesn't use it."""
    keras = sys.modules.get("keras")
    # A user's file or a namespace package may have that name, too.
    return keras if hasattr(keras, "StatelessScope") else None


def _mentions_keras(create_model: Callable[..., Any]) -> bool:
    module = sys.modules.get(getattr(create_model, "__module__", ""))
    try:
        with open(getattr(module, "__file__", None) or "", encoding="utf-8") as file:
            return "keras" in file.read()
    except OSError:
        return False


# Keras numbers the layers of a process: the second model's `dense` is `dense_1`.


class Part(tf.Module):  # type: ignore[misc]
    """A layer, or a group of layers, that holds variables by their names."""


def place(root: tf.Module, model: Any, variables: Iterable[tuple[Any, tf.Variable]]) -> None:
    """Make each TensorFlow variable of Keras' `variables` an attribute of the parts of `root`."""
    names = _stable_names(model._flatten_layers())
    for variable, value in variables:
        *parents, last = _path(variable, model.name, names)
        part = root
        for parent in parents:
            part = _child(part, parent)
        setattr(part, _free(part, last), value)


def _path(variable: Any, model: str, names: dict[str, str]) -> Sequence[str]:
    """Return the names of the parts that hold a variable, from the model's down, and its own."""
    path = variable.path.split("/")
    inner = path[1:] if path[0] == model and len(path) > 1 else path
    return [_attribute(names.get(part, part)) for part in inner]


def _stable_names(layers: Iterator[Any]) -> dict[str, str]:
    """Map each name that Keras gave a layer to one with the layer's number in its own model."""
    given, counts = {}, Counter[str]()
    for layer in layers:
        base = _snake_case(type(layer).__name__)
        if layer.name not in given and re.fullmatch(rf"{base}(_\d+)?", layer.name):
            given[layer.name] = f"{base}_{counts[base]}" if counts[base] else base
            counts[base] += 1
    return given


def _snake_case(name: str) -> str:
    """Return the name of a class as Keras writes it in a layer's name."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _attribute(name: str) -> str:
    """Return `name` as an attribute that hides none of tf.Module's own."""
    name = re.sub(r"\W", "_", name)
    return f"{name}_" if hasattr(Part, name) else name


def _child(part: tf.Module, name: str) -> tf.Module:
    """Return the part of `part` called `name`, which is made if there is none."""
    if not isinstance(vars(part).get(name), Part):
        name = _free(part, name)
        setattr(part, name, Part())
    child: tf.Module = vars(part)[name]
    return child


def _free(part: tf.Module, name: str) -> str:
    """Return `name`, with a number if `part` has such an attribute already."""
    number, free = 0, name
    while free in vars(part):
        number += 1
        free = f"{name}_{number}"
    return free


def _two_classes(spec: DataSpec) -> bool:
    """Return whether one number says which class an example is of."""
    return spec.targets == CLASS and spec.output_shape == (2,)


def _token_problems(model: Any, spec: DataSpec) -> Iterator[str]:
    """Yield what is wrong with the tokens of `spec`: on a TPU an id beyond a table is its last."""
    import keras

    layers = model._flatten_layers()
    rows = [each.input_dim for each in layers if isinstance(each, keras.layers.Embedding)]
    if spec.kind == "text" and max(rows, default=math.inf) == spec.padding == spec.vocabulary - 1:
        yield (
            f"the data's tokenizer has {spec.padding:,} tokens and none for padding, whose id is "
            f"{spec.padding:,}; give the model's embedding spec.vocabulary rows, one more than "
            "the weights that belong to the tokenizer (--init_from fills the others)"
        )
    elif spec.kind == "text" and max(rows, default=math.inf) < spec.vocabulary:
        yield (
            f"the data's tokenizer has {spec.vocabulary:,} tokens, but the model's embedding "
            f"{max(rows):,}; convert the texts with the model's own tokenizer, or widen it"
        )


def _model_problems(model: Any, spec: DataSpec) -> Iterator[str]:
    """Yield what is wrong with `model` before it is built."""
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        yield f"Keras uses {backend}; set KERAS_BACKEND=tensorflow"
    for name in _OF_FIT:
        if getattr(type(model), name, None) is not getattr(keras.Model, name, None):
            yield (
                f"{type(model).__name__} has its own {name}, which only Keras' `fit` calls; add "
                "to the loss with add_loss in `call`, or define `losses` in the file"
            )
    weighted = getattr(model._compile_loss, "_user_loss_weights", None) is not None
    if weighted and not spec.several:
        yield "loss_weights: there is one loss; remove them (`metrics` comes after them)"
    if getattr(model, "run_eagerly", False):
        yield "run_eagerly=True: remove it, and train with --eager=true"
    for layer in model._flatten_layers():
        if getattr(layer, "compute_dtype", None) == "float16":
            yield (
                f"the layer {layer.name} computes in float16, whose losses must be scaled and "
                "which TPUs lack; use mixed_bfloat16 or --precision=bfloat16"
            )
            return


def _names(inputs: Sequence[Any]) -> list[str]:
    return [each.name for each in inputs]


def _input_problems(inputs: Sequence[Any], spec: DataSpec) -> Iterator[str]:
    """Yield what does not fit between a model's `inputs` and the dataset."""
    shapes = {name: shape for name, shape, _ in spec.inputs}
    if spec.inputs and set(_names(inputs)) - set(shapes):
        yield (
            f"the model has the inputs {', '.join(_names(inputs))}, but the dataset has "
            f"{', '.join(shapes)}; give each keras.Input the name of one"
        )
        return
    if not spec.inputs and len(inputs) > 1:
        names = ", ".join(_names(inputs))
        yield f"the model has {len(inputs)} inputs ({names}), but the dataset has one"
        return
    for each in inputs:
        batch, *shape = each.shape
        has = shapes.get(each.name, spec.shape)
        if batch is not None:
            yield (f"the model only takes batches of {batch}; remove the batch size from its Input")
        if not tf.TensorShape(shape).is_compatible_with(has):
            yield (
                f"the model takes inputs of the shape {tuple(shape)}, but the dataset has "
                f"{spec.kind}s of the shape {has}; use spec.shape"
            )


def _output_problems(outputs: Any, spec: DataSpec) -> Iterator[str]:
    """Yield what does not fit between the outputs of a model and the task."""
    found = tf.nest.flatten(outputs)
    if spec.several:
        names = sorted(name for name, *_ in spec.several)
        if not isinstance(outputs, Mapping) or sorted(outputs) != names:
            made = ", ".join(outputs) if isinstance(outputs, Mapping) else f"{len(found)} unnamed"
            yield (
                f"the model has the outputs {made}, but the targets are {', '.join(names)}; return "
                "a dictionary of them, as keras.Model(inputs, {'NAME': …}) does"
            )
        return
    if len(found) > 1:
        yield (
            f"the model has {len(found)} outputs, but the data has one target; pass a dictionary "
            "of targets"
        )
        return
    shape, expected = tuple(found[0].shape[1:]), spec.output_shape
    if shape == (1,) and _two_classes(spec):
        return
    if not tf.TensorShape(shape).is_compatible_with(expected):
        what = "as the task needs it; use spec.output_shape"
        if expected == (spec.classes,) and spec.targets == CLASS:
            what = f"a number for each of the dataset's {spec.classes} classes; use spec.classes"
        yield (
            f"the model returns outputs of the shape {shape} for an example, expected {expected}: "
            f"{what}"
        )
