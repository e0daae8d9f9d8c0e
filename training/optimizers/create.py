"""From parameters to an optimizer."""

from collections.abc import Sequence

import tensorflow as tf

from training.optimizers.adam import Adam
from training.optimizers.base import Optimizer
from training.optimizers.lars import Lars
from training.optimizers.sgd import Sgd
from training.params import Params
from training.schedules import Schedule


def create_optimizer(
    params: Params, variables: Sequence[tf.Variable], schedule: Schedule
) -> Optimizer:
    """Create the optimizer that `params` name; in the strategy's scope."""
    common = {"weight_decay": params.weight_decay, "clip_norm": params.clip_norm}
    if params.optimizer == "adam":
        betas = {"beta_1": params.momentum, "beta_2": params.squares_momentum}
        return Adam(variables, schedule, **common, **betas)
    kind = {"sgd": Sgd, "lars": Lars}[params.optimizer]
    return kind(variables, schedule, **common, momentum=params.momentum)
