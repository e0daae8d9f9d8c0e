"""Make programs for a TPU's compiler of a job's steps."""

from tpu_training.compile.program.lower import lower
from tpu_training.compile.program.steps import trace_evaluation, trace_training
from tpu_training.compile.result import Program
from tpu_training.data.manifest import Manifest
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition


def train_program(
    definition: ModelDefinition, params: Params, manifest: Manifest, replicas: int
) -> Program:
    """Return the training step of one of `replicas` cores.

    On TensorFlow 2.12, which can't compile a sum over cores, it is the step of one core alone, on
    its share of the batch: then the program's `replicas` is 1.

    Raises:
        LoweringError: With everything in the step that a TPU does not take.
        InputError: The batch does not divide, or the model refuses the data or the parameters.
    """
    return lower(trace_training(definition, params, manifest, replicas))


def evaluation_program(
    definition: ModelDefinition, params: Params, manifest: Manifest, replicas: int
) -> Program:
    """Return the evaluation of one batch on one of `replicas` cores.

    Raises:
        LoweringError: With everything in the step that a TPU does not take.
        InputError: The batch does not divide, or the model refuses the data or the parameters.
    """
    return lower(trace_evaluation(definition, params, manifest, replicas))
