"""Say before the first step what a training is going to do, and whether that is worth anything."""

import logging

from tpu_training.data.data_set import DataSet
from tpu_training.loop.state import total_steps
from tpu_training.loop.train import FIRST_STEPS
from tpu_training.models.params import Params

# Below this the warm-up alone is over before a moment of adam has settled.
_FEW_STEPS = 50
_ENOUGH_STEPS = 200

logger = logging.getLogger(__name__)


def log_plan(params: Params, data: DataSet, step: int) -> None:
    """Log the number of steps from `step` on; warn when they are too few to learn from."""
    examples, steps = data.manifest.split("train").examples, total_steps(params, data.manifest)
    if step >= steps:
        return
    logger.info(
        "plan: %g epochs of %d examples in batches of %d are %d steps; the first %d, which a line "
        "follows, include compiling the step",
        params.epochs,
        examples,
        params.global_batch_size,
        steps,
        min(params.steps_per_loop or steps, FIRST_STEPS, steps - step),
    )
    if steps < _FEW_STEPS:
        logger.warning("plan: %d steps are few to learn from: %s", steps, _cure(params, examples))


def _cure(params: Params, examples: int) -> str:
    epochs = params.global_batch_size * _ENOUGH_STEPS / examples
    cure = f"raise --epochs (to {epochs:.0f} for {_ENOUGH_STEPS} steps)"
    batch = 1 << max(int(params.epochs * examples / _ENOUGH_STEPS), 1).bit_length() - 1
    if batch < params.global_batch_size:
        cure += f" or lower --global_batch_size (to {batch})"
    return cure
