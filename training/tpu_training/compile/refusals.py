"""What of a step a TPU refuses, and the line of the user's code that it comes from."""

from __future__ import annotations

import functools
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels

import tpu_training
from tpu_training.errors import LoweringError
from tpu_training.loop.graph import operations

_STEPS = {"train": "training step", "evaluate": "evaluation step"}
_NO_KERNEL = "has no kernel for TPUs"
# A graph's arguments: an operation in name only.
_PLACEHOLDER = "Placeholder"
_CONSTANT = re.compile(
    r"Input (?P<input>\d+) to node `(?P<name>[^`]+)` with op (?P<type>\w+) must be a compile-time"
)
_PREFIX = "Failed getting HLO text: '"
_NODE = re.compile(r"\{\{node (?P<name>[^}]+)\}\}")
# TensorFlow's documentation of automatic outside compilation:
# https://www.tensorflow.org/api_docs/python/tf/config/set_soft_device_placement
_CURE = (
    "replace it, or move it to the input pipeline; on a TPU, TensorFlow refuses the step or leaves "
    "the TPU for the host in each one"
)
_FIXED = "give it a size that does not depend on the data"


@dataclass(frozen=True)
class Refusal:
    """Something that a TPU does not take.

    Attributes:
        type: The type of the operation, such as ResizeBicubic; empty where it is not known.
        where: "FILE:LINE" of the user's code, or "".
        reason: What is wrong with it, as the rest of a sentence.
        cure: What to do.
    """

    type: str
    where: str
    reason: str
    cure: str

    def __str__(self) -> str:
        """Return a sentence without its full stop."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.type} {self.reason}".strip()


def unsupported_operations(graph: tf.Graph) -> list[Refusal]:
    """Return every operation of a step's `graph` that has no kernel for TPUs.

    Among them may be some that do no harm, as nothing needs their results.
    """
    sources = Sources(graph)
    found: dict[Refusal, None] = {}
    for operation, reason in _without_kernel(graph):
        # A gradient of the same type goes with its operation.
        if operation.type not in {refusal.type for refusal in found} or not is_gradient(operation):
            found[Refusal(operation.type, sources.where(operation.name), reason, _CURE)] = None
    return list(found)


def refused_by_tpus(graph: tf.Graph) -> list[Refusal]:
    """Return the operations that XLA can compile for CPUs only.

    Of some fifty kinds tried with libtpu 0.0.52, linear algebra, sorting and shapes with bounds
    among them, those are the Fourier transforms of double precision alone.
    """
    sources = Sources(graph)
    reason = "is in double precision, of which TPUs have no Fourier transform"
    return [
        Refusal(operation.type, sources.where(operation.name), reason, "use complex64 or float32")
        for operation in operations(graph)
        if operation.node_def.attr["Tcomplex"].type == tf.complex128.as_datatype_enum
    ]


def not_lowered(name: str, graph: tf.Graph, error: Exception) -> LoweringError:
    """Return what to tell the user of TensorFlow's `error` on compiling the step called `name`."""
    found = unsupported_operations(graph)
    # Next to operations without a kernel, only this error is certainly a separate one.
    if not found or _CONSTANT.search(str(error)):
        found = [_explain(error, Sources(graph)), *found]
    return refused(name, [*found, *refused_by_tpus(graph)])


def refused(name: str, found: Sequence[Refusal]) -> LoweringError:
    """Return the error that names all of `found` in the step called `name`."""
    cures = "; ".join(dict.fromkeys(refusal.cure for refusal in found))
    listed = "; ".join(map(str, found))
    return LoweringError(f"the {_STEPS[name]} can't run on a TPU: {listed}; {cures}")


def untraceable(name: str, error: Exception) -> LoweringError:
    """Return what to tell the user of `error`, which the model raised on being traced."""
    where = line_of_error(error)
    place = f"{where}: " if where else ""
    reason = " ".join(str(error).split("\n")[-1].split()) or "no message"
    return LoweringError(
        f"the {_STEPS[name]} can't be made a graph: {place}{type(error).__name__}: {reason}; "
        "shapes and Python's own values must be known before the step runs"
    )


def _without_kernel(graph: tf.Graph) -> Iterator[tuple[tf.Operation, str]]:
    for operation in operations(graph):
        if operation.type == _PLACEHOLDER or accepts(operation):
            continue
        types = ", ".join(sorted({tensor.dtype.name for tensor in operation.inputs}))
        takes = f" that takes {types}" if has_kernel(operation.type) else ""
        yield operation, f"{_NO_KERNEL}{takes}"


def _explain(error: Exception, sources: Sources) -> Refusal:
    text = str(error)
    if constant := _CONSTANT.search(text):
        reason = f"needs its input {constant['input']} before the step runs, which computes it"
        return Refusal(constant["type"], sources.where(constant["name"]), reason, _FIXED)
    node = _NODE.search(text)
    where = sources.where(node["name"]) if node else ""
    reason = text.removeprefix(_PREFIX).strip().split("\n")[0]
    return Refusal("", where, reason, "change that line")


_PACKAGE = Path(tpu_training.__file__).parent
_ADAPTER, _NETWORKS = (str(_PACKAGE / "models" / name) for name in ("keras.py", "networks.py"))
_HERE = str(Path(__file__).parent) + "/"
_LIBRARIES = tuple(
    f"{folder}/"
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")),
        *(site.getsitepackages() if hasattr(site, "getsitepackages") else ()),
        str(Path(tf.__file__).parent),
        str(Path(sys.prefix) / "lib"),
    }
)
# What AutoGraph makes of a user's function; the user's own frame comes next in the stack.
_GENERATED = "__autograph_generated_file"
_GRADIENT = "gradient_tape/"


class Sources:
    """The lines of code of a graph's operations, by the operations' names."""

    def __init__(self, graph: tf.Graph) -> None:
        """Look at `graph` and all functions in it."""
        self._operations = {operation.name: operation for operation in operations(graph)}
        self._known: dict[str, str] = {}

    def where(self, name: str) -> str:
        """Return "FILE:LINE" of the operation called `name`; "" where it is not known.

        For the gradient of an operation it is the line of the operation itself.
        """
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> str:
        operation = self._operations.get(name)
        if name.startswith(_GRADIENT):
            operation = self._forward(name, operation) or operation
        while operation is None and "/" in name:
            # The compiler appends the names of what it made of an operation.
            name = name.rpartition("/")[0]
            operation = self._operations.get(name)
        return line_of(operation) if operation else ""

    def _forward(self, name: str, gradient: tf.Operation | None) -> tf.Operation | None:
        """Return the operation of which `gradient` is the gradient.

        The name of a gradient begins with the name scope of its operation. Where that had none, the
        two have inputs in common and related types: Conv2D, Conv2DBackpropFilter.
        """
        scope = name.removeprefix(_GRADIENT).rpartition("/")[0]
        while scope and scope not in self._operations and scope not in self._scopes:
            scope = scope.rpartition("/")[0]
        if scope and self._operations.get(scope, self._scopes.get(scope)):
            found = self._operations.get(scope) or self._scopes[scope]
            if found.type not in ("While", "StatelessWhile", "If", "StatelessIf"):
                return found
        related = _related(gradient) if gradient else []
        return max(related, key=lambda operation: len(operation.type), default=None)

    @cached_property
    def _scopes(self) -> dict[str, tf.Operation]:
        """The first operation of each name scope."""
        scopes: dict[str, tf.Operation] = {}
        for name, operation in self._operations.items():
            scope = name.rpartition("/")[0]
            if scope and not name.startswith(_GRADIENT):
                scopes.setdefault(scope, operation)
        return scopes


def is_gradient(operation: tf.Operation) -> bool:
    """Return whether a gradient tape made `operation`."""
    return bool(operation.name.startswith(_GRADIENT))


def _related(gradient: tf.Operation) -> list[tf.Operation]:
    near = [other for tensor in gradient.inputs for other in (tensor.op, *tensor.consumers())]
    return [
        other
        for other in near
        if not other.name.startswith(_GRADIENT)
        and other.type != gradient.type
        and gradient.type.startswith(other.type.removesuffix("V2").removesuffix("V3"))
    ]


def line_of(operation: tf.Operation) -> str:
    """Return "FILE:LINE" of the code that made `operation`; "" where it is not known.

    It is the innermost line of the user's own files; for a built-in model, that of the model.
    """
    return _innermost([(frame.filename, frame.lineno) for frame in operation.traceback or ()])


def line_of_error(error: BaseException) -> str:
    """Return "FILE:LINE" of the code that raised `error` while a step was traced, or ""."""
    # AutoGraph translates the lines of its generated files, innermost first.
    metadata = getattr(error, "ag_error_metadata", None)
    if stack := getattr(metadata, "translated_stack", ()):
        own = [(frame.filename, frame.lineno) for frame in reversed(stack)]
        if line := _innermost(own):
            return line
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost([(frame.filename, frame.lineno or 0) for frame in frames])


def _innermost(frames: Sequence[tuple[str, int]]) -> str:
    tracing = [index for index, (file, _) in enumerate(frames) if file.startswith(_HERE)]
    # What called the tracing is not part of the step.
    inner = [frame for frame in frames[min(tracing, default=0) :] if _HERE not in frame[0]]
    ours = [frame for frame in inner if frame[0].startswith(f"{_PACKAGE}/")]
    users = [frame for frame in inner if frame not in ours and _is_users(frame[0])]
    networks = [frame for frame in ours if frame[0] == _NETWORKS]
    if not users and any(file == _ADAPTER for file, _ in ours):
        return ""  # A Keras layer, whose name says more than the line that calls all of them.
    for found in (users, networks, ours):
        if found:
            return f"{_shown(found[-1][0])}:{found[-1][1]}"
    return ""


def _is_users(file: str) -> bool:
    return not file.startswith((*_LIBRARIES, "<")) and _GENERATED not in file


def _shown(file: str) -> str:
    """Shorten the path of a file of this package, or below the current directory."""
    for folder in (_PACKAGE.parent, Path.cwd()):
        if file.startswith(f"{folder}/"):
            return file.removeprefix(f"{folder}/")
    return file


# TensorFlow's packages have no kernels for TPUs: those come with the TPU's own library. The kernels
# for XLA on CPUs stand in for them; both are generated from the same source,
# tensorflow/compiler/tf2xla/kernels. `refused_by_tpus` finds those that only CPUs have.
_DEVICE = "XLA_CPU_JIT"


@functools.cache
def _kernels(operation_type: str) -> tuple[Any, ...]:
    registered = kernels.get_registered_kernels_for_op(operation_type).kernel
    return tuple(kernel for kernel in registered if kernel.device_type == _DEVICE)


def has_kernel(operation_type: str) -> bool:
    """Return whether XLA can compile operations of this type, for some type of numbers."""
    return bool(_kernels(operation_type))


def accepts(operation: tf.Operation) -> bool:
    """Return whether XLA can compile this operation with its types of numbers."""
    return any(_fits(kernel, operation) for kernel in _kernels(operation.type))


def _fits(kernel: Any, operation: tf.Operation) -> bool:
    attributes = operation.node_def.attr
    return all(
        attributes[constraint.name].type in constraint.allowed_values.list.type
        for constraint in kernel.constraint
        if constraint.allowed_values.list.type and attributes[constraint.name].type
    )
