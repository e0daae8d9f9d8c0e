"""Settings of the training that the stack runs."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, StrEnum, Text


class RunOn(StrEnum):
    """The machine that runs the trainer."""

    VM = "vm"
    TPU = "tpu"


class TrainingSettings(Section):
    """The training: what runs, where, on which data."""

    run_on: RunOn = RunOn.VM
    """vm: the VM drives the TPU by gRPC. tpu: worker 0 of the TPU VM runs the trainer itself
    (architecture vm only).
    """
    job: Text = "train"
    """Name of this run; its results are under jobs/NAME in the bucket, or jobs/NAME-DIGEST with
    `training.data` or `training.args`, so that other data and other arguments each start a new job.
    A finished job is not run again: give the next one a new name.
    """
    wheel: Text | None = None
    """Wheel of the training package, relative to the project's root. The newest
    dist/tpu_stack_training-*.whl if it is not set.
    """
    data: Text | None = None
    """Directory, relative to the project's root, that `tpu-training data convert` wrote; its files
    become objects under data/ in the bucket.
    """
    args: tuple[Text, ...] = ()
    """Further arguments of `tpu-training train-and-evaluate`."""
    tensorflow_version: Text | None = None
    """TensorFlow on the machine that runs the trainer; it must agree with the TPU's. The TPU's own
    version if it is not set.
    """
    model_memory_gib: float = Field(default=2.0, ge=0.1, le=12288)
    """Memory in GiB that the model needs on the VM, where it is initialised (0.1 to 12288)."""
