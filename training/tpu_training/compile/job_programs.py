"""A job's programs for batches of any size. Loads TensorFlow when they are made."""

import dataclasses
from dataclasses import dataclass, field

from tpu_training.compile.apart import make_apart
from tpu_training.compile.result import Program
from tpu_training.data.manifest import Manifest
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition


@dataclass(frozen=True)
class JobPrograms:
    """The training step and the evaluation of a job."""

    model: ModelDefinition
    params: Params
    manifest: Manifest
    # The last step, which several TPU types with as many replicas share.
    _made: dict[tuple[int, int], Program] = field(default_factory=dict, repr=False)

    def train(self, replicas: int, part: int) -> Program:
        """Return the step in which a replica processes `part` examples at a time."""
        if (replicas, part) not in self._made:
            self._made.clear()
            self._made[replicas, part] = self._make(replicas, part)
        return self._made[replicas, part]

    def evaluation(self, replicas: int) -> Program:
        """Return the step of the evaluation."""
        return make_apart(lambda: _evaluation(self, replicas))

    def _make(self, replicas: int, part: int) -> Program:
        batch = part * self.params.gradient_accumulation * replicas
        params = dataclasses.replace(self.params, global_batch_size=batch)
        return make_apart(lambda: _train(dataclasses.replace(self, params=params), replicas))


def _train(job: JobPrograms, replicas: int) -> Program:
    from tpu_training.compile.program.programs import train_program

    return train_program(job.model, job.params, job.manifest, replicas)


def _evaluation(job: JobPrograms, replicas: int) -> Program:
    from tpu_training.compile.program.programs import evaluation_program

    return evaluation_program(job.model, job.params, job.manifest, replicas)
