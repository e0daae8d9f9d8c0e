"""The command of a sweep that names none: the training of the stack."""

from __future__ import annotations

import shlex

from tpustack.errors import UsageError

_TRAINER = (
    'python -m tpu_training train-and-evaluate --tpu="$TPU_NAME" --tpu-zone="$TPU_ZONE" '
    '--tpu-project="$TPU_PROJECT" --data="$DATA_DIR" --model-dir="$MODEL_DIR"'
)


def command_of(stack: str | None) -> str:
    """Return what trains as the stack's settings say. Raises UsageError without a stack."""
    from tpustack.stacks.files import load

    if stack is None:
        raise UsageError(
            "--command: (not given), and without --stack there is no training to vary. Give one "
            'like --command "python main.py"'
        )
    return " ".join([_TRAINER, *map(shlex.quote, load(stack).training.args)])
