"""Make HLO, the compiler's input, of a traced step."""

from typing import Any

from tensorflow.compiler.xla.service import hlo_pb2

from tpu_training.compile.program.arguments import arguments_of
from tpu_training.compile.program.generator import use_default_generator
from tpu_training.compile.program.hlo import ERRORS, hlo_of
from tpu_training.compile.program.refusals import not_lowered, refused, refused_by_tpus
from tpu_training.compile.program.sources import Sources
from tpu_training.compile.program.steps import Step
from tpu_training.compile.result import Program


def lower(step: Step) -> Program:
    """Return `step` as a program for a TPU's compiler.

    Raises:
        LoweringError: The step can't run on a TPU.
    """
    graph = step.concrete.graph
    try:
        hlo = hlo_of(step.function, step.specs)
    except ERRORS as error:
        raise not_lowered(step.name, graph, error) from error
    if found := refused_by_tpus(graph):
        raise refused(step.name, found)
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    use_default_generator(module)
    _name_lines(module, Sources(graph))
    arguments = arguments_of(step, module)
    return Program(step.name, module.SerializeToString(), "hlo", step.replicas, arguments)


def _name_lines(module: Any, sources: Sources) -> None:
    """Write the user's line into each instruction; TensorFlow 2.19 writes one of its own."""
    for computation in module.computations:
        for instruction in computation.instructions:
            file, _, line = sources.where(instruction.metadata.op_name).rpartition(":")
            instruction.metadata.source_file = file
            instruction.metadata.source_line = int(line or 0)
