"""The parameters of a training that starts from weights that are there, or trains only some."""

from dataclasses import dataclass

from tpu_training.models.declare import param


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Where the first weights come from, and how much each of them learns."""

    init_from: str = param(
        "",
        "first weights: a model directory or checkpoint of this trainer, a TensorFlow checkpoint, "
        ".weights.h5, .keras or .safetensors; a resumed job's own checkpoint counts before it",
    )
    init_map: str = param(
        "", "names in init_from that differ, THEIRS=OURS,… with * for any part; or a YAML file"
    )
    freeze: str = param(
        "", "variables to leave as they are: patterns with commas; !PATTERN takes out again"
    )
    rate_factors: str = param(
        "", "factors of the learning rate, PATTERN=FACTOR,…; of several that match the last counts"
    )
    ema_decay: float = param(
        0.0,
        "decay of the average of the weights that evaluation, best and export use; 0: none",
        0,
        0.999999,
    )
    layer_decay: float = param(
        1.0, "factor of the learning rate from each layer to the one below it", 0.01, 1.0
    )
