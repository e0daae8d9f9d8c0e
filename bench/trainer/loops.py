"""How long no loop of steps runs in a job, between its first and its last; prints JSON.

Usage: python -m bench.trainer.loops DATA MODEL_DIR
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
from tpu_training import fit
from tpu_training.loop import train
from tpu_training.loop import train as loop_of_loops


def main(data: str, model_dir: str) -> None:
    """Train half an epoch; no checkpoint is due before the end."""
    times: list[tuple[float, float]] = []
    run = train.run_loop

    def timed(*arguments: object) -> object:
        begun = time.perf_counter()
        figures = run(*arguments)  # type: ignore[arg-type]
        times.append((begun, time.perf_counter()))
        return figures

    vars(loop_of_loops)["run_loop"] = timed
    settings: dict[str, Any] = {"steps_per_loop": 20, "global_batch_size": 64, "epochs": 0.5}
    fit("mnist_cnn", data=data, model_dir=model_dir, checkpoint_interval=1 << 30, **settings)
    # The first loop compiles the step; what it is counted for is handled during the second.
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(times[1:])]
    whole = times[-1][1] - times[1][1]
    print(json.dumps({"share": sum(gaps) / whole, "each": sum(gaps) / len(gaps)}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
