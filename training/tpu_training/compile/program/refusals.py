"""Say what of a step a TPU does not take, and where it stands in the user's code."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.compile.program.kernels import accepts, has_kernel
from tpu_training.compile.program.sources import Sources, is_gradient, line_of_error
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
        type: The type of the operation, such as ResizeBicubic; empty where nobody knows.
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
    # Beside operations without a kernel only this error is certain to be another one.
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
