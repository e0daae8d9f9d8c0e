"""Create the optimizer from the parameters."""

from collections.abc import Sequence

import tensorflow as tf

from tpu_training.loop.optimizers.adam import Adam
from tpu_training.loop.optimizers.base import Optimizer
from tpu_training.loop.optimizers.lars import Lars
from tpu_training.loop.optimizers.schedules import Schedule
from tpu_training.loop.optimizers.sgd import Sgd
from tpu_training.models.params import Params


def create_optimizer(
    params: Params, variables: Sequence[tf.Variable], schedule: Schedule
) -> Optimizer:
    """Create the optimizer that `params` names; call in the strategy's scope."""
    common = {"weight_decay": params.weight_decay, "clip_norm": params.clip_norm}
    if params.optimizer == "adam":
        betas = {"beta_1": params.momentum, "beta_2": params.squares_momentum}
        return Adam(variables, schedule, **common, **betas)
    kind = {"sgd": Sgd, "lars": Lars}[params.optimizer]
    return kind(variables, schedule, **common, momentum=params.momentum)
