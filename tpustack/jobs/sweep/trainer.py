"""The command of a sweep that names none: the training of the stack."""

from __future__ import annotations

import shlex

from tpustack.errors import UsageError

_TRAINER = (
    'python -m tpu_training train-and-evaluate --tpu="$TPU_NAME" --tpu-zone="$TPU_ZONE" '
    '--tpu-project="$TPU_PROJECT" --data="$DATA_DIR" --model-dir="$MODEL_DIR"'
)


def command_of(stack: str | None, *, managed: bool = False) -> str:
    """Return what trains as the stack's settings say.

    Raises:
        UsageError: there is no stack, or Vertex AI is to run it, whose containers lack the trainer.
    """
    from tpustack.stacks import load

    if managed:
        raise UsageError(
            "--command: (not given), and the stack's own training is not in the containers of "
            'Vertex AI. Give one like --command "python main.py"'
        )
    if stack is None:
        raise UsageError(
            "--command: (not given), and without --stack there is no training to vary. Give one "
            'like --command "python main.py"'
        )
    return " ".join([_TRAINER, *map(shlex.quote, load(stack).training.args)])
