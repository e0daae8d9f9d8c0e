"""`model.json`: the description from which a model directory's model can be rebuilt.

A checkpoint has weights by name and no code. `export` takes the model, its parameters and its task
from here, and a training that is started again compares its data and task with those of before.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from tpu_core import records
from tpu_training import errors, tasks
from tpu_training.checkpoints.reader import Value, checkpoint_paths, plain
from tpu_training.cluster.google import is_bucket
from tpu_training.data import files
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import BUILT_IN, ModelDefinition, load_model
from tpu_training.models.spec import DataSpec

_FILE_NAME = "model.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelDescription:
    """A model's name or file, its parameters, its task and its training data.

    `task` is what was named, by --task or in the model's file, and `task_name` what that is called.
    `vocabulary` is the name of the tokenizer's file in the model directory, for texts.
    """

    model: str
    params: dict[str, Value]
    spec: DataSpec
    data: str
    class_names: tuple[str, ...] = ()
    task: str = ""
    task_name: str = ""
    vocabulary: str = ""

    def write(self, model_dir: str) -> None:
        """Write it to `model_dir`."""
        files.write_text(_path(model_dir), records.dump(self).decode())

    def definition(
        self, model_dir: str, other: str | ModelDefinition | None = None
    ) -> tuple[ModelDefinition, Params]:
        """Load the model's code, from the file `other` if it was moved; or take what is given.

        Raises:
            InputError: The model or its task was written in a notebook, which no file has, or is in
                a file that only a bucket names.
        """
        if isinstance(other, ModelDefinition):
            definition = other
        else:
            definition = load_model(other or self.model_in_file(model_dir))
        if not isinstance(other, ModelDefinition) or not other.task:
            definition = tasks.with_task(
                definition, _trusted(self.task, model_dir, "export(…, task=…)")
            )
        if self.task_name and tasks.task_of(definition, self.spec).name != self.task_name:
            raise errors.InputError(
                f"the model was trained for the task {self.task_name}, which is in no file; call "
                "tpu_training.export(model_dir, output, task=…) with the Task that was passed to "
                "fit"
            )
        return definition, build_params(self.params, (), kind=definition.params)

    def model_in_file(self, model_dir: str) -> str:
        """Return the name or file of the model. Raises InputError if it is in no file."""
        name = _trusted(self.model, model_dir, "--model")
        if name.endswith(".py") or name in BUILT_IN:
            return name
        raise errors.InputError(
            f"the model was trained with the function {name} of a notebook or program, which is "
            "in no file; call tpu_training.export(model_dir, output, model=…) with that function"
        )


def _trusted(name: str, model_dir: str, way: str) -> str:
    """Return `name`, unless it is a file here, to be run, that a bucket's writers have chosen."""
    if name.endswith(".py") and is_bucket(model_dir):
        raise errors.InputError(
            f"{_path(model_dir)} names the program {name} of this machine, as anyone who can "
            f"write there may do; if it is the program that was trained, pass {way}"
        )
    return name


def describe_model(
    definition: ModelDefinition,
    params: Params,
    spec: DataSpec,
    data: str,
    class_names: tuple[str, ...] = (),
    vocabulary: str = "",
) -> ModelDescription:
    """Describe the model that is about to be trained, with its changed parameters only.

    A later release may have other defaults, which then count: only what was asked for is kept.
    """
    usual = plain(build_params({"optimizer": params.optimizer}, (), kind=type(params)))
    given = plain(params)
    changed = {name: value for name, value in given.items() if value != usual[name]}
    if params.optimizer != definition.params.optimizer:
        changed["optimizer"] = params.optimizer
    task = definition.task if isinstance(definition.task, str) else definition.task.file
    name = tasks.task_of(definition, spec).name
    named = (class_names, task, name, vocabulary)
    return ModelDescription(definition.name, changed, spec, data, *named)


def read_description(model_dir: str) -> ModelDescription:
    """Read the description from `model_dir`.

    Raises:
        InputError: It is missing or malformed.
    """
    path = _path(model_dir)
    text = files.read_text(path)
    if text is None:
        raise errors.InputError(
            f"--model-dir={model_dir}: contains no {_FILE_NAME}, which every training writes when "
            "it starts; check that this is the training's model directory"
        )
    try:
        return records.load(ModelDescription, text)
    except records.Unreadable as error:
        raise errors.InputError(f"{path} is broken ({error})") from error


def refuse_another_purpose(
    model_dir: str, spec: DataSpec, data: str, definition: ModelDefinition
) -> None:
    """Raise CheckpointError if the model in `model_dir` was trained for other examples or tasks.

    What has no checkpoint yet may be trained on anything.
    """
    if not checkpoint_paths(f"{model_dir.rstrip('/')}/checkpoints"):
        return
    try:
        had = read_description(model_dir)
    except errors.InputError as error:
        logger.warning("model: %s; writing it again", error)
        return
    if differences := [*_differences(had.spec, spec)]:
        raise errors.CheckpointError(
            f"--data={data} does not fit the model in --model-dir={model_dir}, which was trained "
            f"on {had.data}: {', '.join(differences)}; use the dataset that it was trained on, or "
            "another --model-dir"
        )
    task = tasks.task_of(definition, spec).name
    if had.task_name and had.task_name != task:
        raise errors.CheckpointError(
            f"--task={task}: the model in --model-dir={model_dir} was trained for the task "
            f"{had.task_name}; use that one, or another --model-dir (--init_from={model_dir} "
            "starts from its weights)"
        )


def _differences(had: DataSpec, now: DataSpec) -> Iterator[str]:
    if had.kind != now.kind:
        yield f"{had.kind}s, here {now.kind}s"
        return
    if had.shape != now.shape:
        flag = " (--image_size)" if had.kind == "image" and had.shape[2] == now.shape[2] else ""
        yield f"{had.kind}s of the shape {had.shape}, here {now.shape}{flag}"
    if had.inputs != now.inputs:
        yield f"the inputs {had.inputs}, here {now.inputs}"
    if had.classes != now.classes:
        yield f"{had.classes} classes, here {now.classes}"
    if had.targets != now.targets:
        yield f"{had.targets} to learn, here {now.targets}"
    if had.start != now.start:
        packed = had.start >= 0
        yield "packed texts" + (", here one in each example" if packed else " here, before one")
    if had.vocabulary != now.vocabulary:
        yield f"a vocabulary of {had.vocabulary} tokens, here {now.vocabulary}"
    if had.padding != now.padding:
        yield f"{had.padding} for padding, here {now.padding}"


def _path(model_dir: str) -> str:
    return f"{model_dir.rstrip('/')}/{_FILE_NAME}"
