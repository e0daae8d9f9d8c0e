"""A job: its mode (train, evaluate, train-and-evaluate), data, results, model and parameters."""

from dataclasses import dataclass

from tpu_training.loop.callbacks import Callback
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition

MODES = ("train", "evaluate", "train-and-evaluate")


@dataclass(frozen=True)
class Job:
    """A job as the command line or a program describes it."""

    mode: str
    tpu: str | None
    tpu_project: str | None
    tpu_zone: str | None
    data: str
    model_dir: str
    model: ModelDefinition
    params: Params
    callbacks: tuple[Callback, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self.mode in ("train", "train-and-evaluate")

    @property
    def evaluates(self) -> bool:
        """Whether the mode evaluates."""
        return self.mode in ("evaluate", "train-and-evaluate")
