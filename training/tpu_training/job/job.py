"""What a job is: the modes train, evaluate, train-and-evaluate, and what they work on."""

from dataclasses import dataclass

from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition


@dataclass(frozen=True)
class Job:
    """What to run, on what, from where to where."""

    mode: str
    tpu: str | None
    tpu_project: str | None
    tpu_zone: str | None
    data: str
    model_dir: str
    model: ModelDefinition
    params: Params

    @property
    def trains(self) -> bool:
        """Whether the mode has a training part."""
        return self.mode in ("train", "train-and-evaluate")

    @property
    def evaluates(self) -> bool:
        """Whether the mode has an evaluation part."""
        return self.mode in ("evaluate", "train-and-evaluate")
