"""An account as text for Prometheus, such as for the node exporter's textfile collector.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterable, Mapping

from tpu_training.goodput.account import Account

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# (labels, value)
Sample = tuple[Mapping[str, str], float]


def to_prometheus(total: Account, job: str) -> str:
    """Return the metrics of `job`, each with its help and its type."""
    own = {"job_name": job}
    states = (({**own, "state": state}, value) for state, value in total.seconds.items())
    causes = (({**own, "cause": cause}, value) for cause, value in total.causes.items())
    tpus = (
        ({**own, "tpu": tpu, "state": state}, value)
        for tpu, seconds in total.tpus.items()
        for state, value in seconds.items()
    )
    parts = (
        _metric("goodput_ratio", "Part of the wall time in steps that count.", own, total.goodput),
        _metric("wall_seconds", "Wall time of the job.", own, total.wall),
        _metric("steps", "Steps that count.", own, total.steps),
        _metric("lost_steps", "Steps that were done again.", own, total.lost_steps),
        _metric("starts", "Starts of the trainer.", own, total.starts),
        _metrics("state_seconds", "Wall time by state.", states),
        _metrics("badput_seconds", "Wall time that is no goodput, by its cause.", causes),
        _metrics("tpu_state_seconds", "Time of each TPU by its state.", tpus),
    )
    return "".join(parts)


def _metric(name: str, meaning: str, labels: Mapping[str, str], value: float) -> str:
    return _metrics(name, meaning, [(labels, value)])


def _metrics(name: str, meaning: str, samples: Iterable[Sample]) -> str:
    # Gauges: a finished count may shrink when a later start goes back behind it.
    full = f"tpu_training_{name}"
    lines = [f"# HELP {full} {meaning}", f"# TYPE {full} gauge"]
    lines += [f"{full}{{{_labels(labels)}}} {value!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
