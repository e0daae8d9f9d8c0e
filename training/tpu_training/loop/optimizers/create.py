"""Create the optimizer from the parameters."""

from typing import Any

from tpu_training.loop.optimizers.adam import Adam
from tpu_training.loop.optimizers.base import Optimizer
from tpu_training.loop.optimizers.choice import Choice
from tpu_training.loop.optimizers.lars import Lars
from tpu_training.loop.optimizers.lion import Lion
from tpu_training.loop.optimizers.muon import Muon
from tpu_training.loop.optimizers.schedules import Schedule
from tpu_training.loop.optimizers.sgd import Nesterov, Sgd
from tpu_training.models.params import KERAS_AUTO, Params


def create_optimizer(params: Params, chosen: Choice, schedule: Schedule) -> Optimizer:
    """Create the optimizer that `params` names; call in the strategy's scope."""
    common: dict[str, Any] = {"weight_decay": params.weight_decay, "clip_norm": params.clip_norm}
    common |= {"rate_factors": chosen.rate_factors, "paths": chosen.paths}
    if params.optimizer == "muon":
        common["head"] = chosen.head
    if kind := {KERAS_AUTO: Adam, "adam": Adam, "lion": Lion, "muon": Muon}.get(params.optimizer):
        betas = {"beta_1": params.momentum, "beta_2": params.squares_momentum}
        return kind(chosen.trained, schedule, **common, **betas)
    plain = {"sgd": Sgd, "nesterov": Nesterov, "lars": Lars}[params.optimizer]
    return plain(chosen.trained, schedule, **common, momentum=params.momentum)
