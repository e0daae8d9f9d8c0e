"""Say that a job does not fit into a TPU, and what would."""

from tpu_training.compile.answer import Answer
from tpu_training.compile.result import Compiled
from tpu_training.compile.table import size


def misfit(answer: Answer) -> str | None:
    """Return one sentence on what does not fit and the cure; None if everything fits."""
    if answer.fits:
        return None
    train = not answer.train.fits
    refused = answer.train if train or answer.evaluation is None else answer.evaluation
    what = f"a step of batch {answer.global_batch_size:,}" if train else "the evaluation"
    return f"{what} does not fit {answer.tpu}: {_need(refused)}. {_cure(answer, train)}"


def largest_batch(answer: Answer) -> str | None:
    """Return a sentence on the largest batch that fits; None if it was not searched."""
    if answer.largest is None:
        return None
    if not answer.largest.fits:
        return f"Not even one example a replica fits {answer.tpu}"
    fits, plain = answer.whole(answer.largest.fits), answer.whole(answer.largest.plain)
    return (
        f"The largest --global_batch_size that fits {answer.tpu} is {fits}, or {plain} without "
        "computing anything twice"
    )


def _need(refused: Compiled) -> str:
    return (
        f"a replica has {size(refused.limit_bytes)} and it needs {size(refused.needed_bytes)} "
        f"(compiled, {refused.compiler})"
    )


def _cure(answer: Answer, train: bool) -> str:
    if not train:
        return "Lower --evaluation_batch_size"
    known = largest_batch(answer)
    return f"{known}; or raise --gradient_accumulation" if known else "Lower --global_batch_size"
