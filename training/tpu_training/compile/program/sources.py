"""Find the line of code from which an operation comes."""

import site
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tensorflow as tf

import tpu_training
from tpu_training.loop.graph import operations

_PACKAGE = Path(tpu_training.__file__).parent
_MODELS = str(_PACKAGE / "models") + "/"
_ADAPTER = f"{_MODELS}keras/"
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
        """Return "FILE:LINE" of the operation called `name`; "" where nobody knows.

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
    """Return "FILE:LINE" of the code that made `operation`; "" where nobody knows.

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
    networks = [frame for frame in ours if _is_network(frame[0])]
    if not users and any(file.startswith(_ADAPTER) for file, _ in ours):
        return ""  # A Keras layer, whose name says more than the line that calls all of them.
    for found in (users, networks, ours):
        if found:
            return f"{_shown(found[-1][0])}:{found[-1][1]}"
    return ""


def _is_users(file: str) -> bool:
    return not file.startswith((*_LIBRARIES, "<")) and _GENERATED not in file


def _is_network(file: str) -> bool:
    return file.startswith(_MODELS) and "/" in file.removeprefix(_MODELS)


def _shown(file: str) -> str:
    """Shorten the path of a file of this package, or below the current directory."""
    for folder in (_PACKAGE.parent, Path.cwd()):
        if file.startswith(f"{folder}/"):
            return file.removeprefix(f"{folder}/")
    return file
