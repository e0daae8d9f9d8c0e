"""Tasks: which one a training learns, and whether the dataset holds what it needs.

Losses and metrics need TensorFlow, which takes seconds to load, so they are in built_in.py, and
their names are listed here for `--help` and wrong input. A user's own task is a file with a `task`.
"""

import dataclasses
import hashlib
from pathlib import Path

from tpu_training.errors import InputError
from tpu_training.models import params, registry, spec as specs

# What a dataset of these targets is for by default.
_BY_TARGETS = {
    specs.CLASS: "classification",
    specs.LABELS: "multi_label",
    specs.NUMBERS: "regression",
    specs.TOKEN_CLASSES: "token_classification",
    specs.MASK: "segmentation",
}
# They make their targets of the features.
LANGUAGE_MODELS = ("causal_lm", "masked_lm")


def built_in_tasks() -> list[str]:
    """Return the names of the built-in tasks."""
    return [*_BY_TARGETS.values(), *LANGUAGE_MODELS]


def with_task(definition: registry.ModelDefinition, name: str | None) -> registry.ModelDefinition:
    """Return `definition` for `--task=NAME`, or else for the task of the model's file.

    Raises:
        InputError: No task has that name.
    """
    chosen = name or definition.task
    task = chosen if isinstance(chosen, specs.Task) else _named(str(chosen))
    return dataclasses.replace(definition, task=task)


def _named(name: str) -> str | specs.Task:
    """Return the name of a built-in task, or the Task of a user's file."""
    if name.endswith(".py"):
        task = getattr(registry.load_file(name, "task"), "task", None)
        if not isinstance(task, specs.Task):
            raise InputError(f"--task={name}: lacks `task = Task(...)` of tpu_training")
        return dataclasses.replace(task, file=name)
    if name and name not in built_in_tasks():
        raise InputError(
            f"--task={name}: unknown{params.suggest(name, built_in_tasks())}; expected "
            f"{', '.join(built_in_tasks())}, or the path of a .py file"
        )
    return name


def identity(definition: registry.ModelDefinition) -> dict[str, str]:
    """Return what names the task of `definition`, if not its model's file and dataset do."""
    task = definition.task
    if isinstance(task, str):
        return {"task": task} if task else {}
    if not task.file:
        return {}
    return {"task": hashlib.sha256(Path(task.file).read_bytes()).hexdigest()}


def makes_targets(definition: registry.ModelDefinition) -> bool:
    """Return whether the task makes its targets itself, whatever the dataset holds."""
    task = definition.task
    return task.any_targets if isinstance(task, specs.Task) else task in LANGUAGE_MODELS


def check_targets(definition: registry.ModelDefinition, spec: specs.DataSpec) -> None:
    """Raise InputError if the dataset does not hold what the task needs; loads nothing."""
    task = definition.task
    if isinstance(task, specs.Task):
        needed, name = ("" if task.any_targets else task.targets), task.name
    else:
        needed = {task: targets for targets, task in _BY_TARGETS.items()}.get(task, "")
        name = task
    if needed and needed != spec.targets:
        raise InputError(
            f"--task={name}: needs examples with {needed}, but the dataset has {spec.targets}; "
            f"omit --task for {_BY_TARGETS.get(spec.targets, ' or '.join(LANGUAGE_MODELS))}"
        )
    if name in LANGUAGE_MODELS and spec.kind != "text":
        raise InputError(f"--task={name}: is for text, but the dataset has {spec.kind}s")
    if not name and spec.targets == specs.NOTHING:
        raise InputError(
            f"the dataset has no targets; pass --task={' or --task='.join(LANGUAGE_MODELS)}"
        )


def task_of(definition: registry.ModelDefinition, spec: specs.DataSpec) -> specs.Task:
    """Return the task of `definition` for examples of `spec`. Raises InputError; see above."""
    check_targets(definition, spec)
    if isinstance(definition.task, specs.Task):
        return definition.task
    if spec.several:
        # Its losses are those of the model's `compile`.
        return specs.Task(specs.SEVERAL, targets=specs.SEVERAL, predictions=dict, own=False)
    from tpu_training.tasks.built_in import TASKS

    return TASKS[definition.task or _BY_TARGETS[spec.targets]]
