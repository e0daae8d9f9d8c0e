"""The parameters of what watches a training."""

from dataclasses import dataclass

from tpu_training.models.declare import param


@dataclass(frozen=True, kw_only=True)
class Observing:
    """Callbacks of one's own, trackers, and what the speed is compared with."""

    callback: str = param(
        "", "a file .py of your own with create_callbacks(job), whose callbacks run between loops"
    )
    tracker: str = param(
        "",
        "wandb or mlflow: send parameters and curves there, through its own library",
        choices=("", "wandb", "mlflow"),
    )
    tpu_type: str = param(
        "",
        "such as v5litepod-8, for the share of its peak (MFU); TPU VMs know it by themselves",
    )
