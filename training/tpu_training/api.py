"""Train from Python, such as a notebook: the job that the command line runs."""

import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NoReturn

from tpu_training import errors, tasks
from tpu_training.data import conversion
from tpu_training.data.manifest import SPLITS
from tpu_training.data.output import refuse_used
from tpu_training.job import start, supervision
from tpu_training.job.job import MODES, Job, Result
from tpu_training.loop.callbacks import checked
from tpu_training.models import registry
from tpu_training.models.params import KerasParams, Params, build_params
from tpu_training.models.registry import DEFAULT_MODEL, CreateModel, ModelDefinition
from tpu_training.models.spec import Task
from tpu_training.monitoring.terminal import TerminalHandler, quiet_libraries
from tpu_training.serving import EXPORTED

if TYPE_CHECKING:
    from tpu_training.serving.model import RestoredModel

# The trainer's own optimizers; another name is one of Keras', if the model is a function.
_NAMED = KerasParams.__dataclass_fields__["optimizer"].metadata["choices"]
# features and targets of a split
Arrays = tuple[Any, ...]


def fit(
    model: str | CreateModel = DEFAULT_MODEL,
    *,
    data: Any,
    validation: Any = None,
    test: Any = None,
    model_dir: str,
    task: str | Task | None = None,
    params: Params | Mapping[str, Any] | None = None,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Sequence[Any] | Mapping[str, Any] = (),
    mode: str = "train-and-evaluate",
    callbacks: Sequence[Any] = (),
    tpu: str | None = None,
    tpu_project: str | None = None,
    tpu_zone: str | None = None,
    **settings: Any,
) -> Result:
    """Train a model and evaluate it, or continue the training in `model_dir`.

    Args:
        model: A built-in model's name, the path of a file, or a function `create_model(params,
            spec, seed)` that returns a Keras model or a tf.Module. A tf.Module maps features
            (batch, *spec.shape) and `training`, a bool, to float32 (batch, *spec.output_shape).
        data: A dataset's directory or gs:// URL, tfds:NAME, hf:OWNER/NAME, or examples: a
            tf.data.Dataset, a keras.utils.PyDataset, or (features, targets[, weights]). Features
            and targets are arrays or dictionaries of arrays. A weight multiplies an example's
            loss. A dictionary of "train", "validation" and "test" gives all splits at
            once. Bytes, token ids and texts with a test split are written below `model_dir`.
        validation: Those that choose the best checkpoint, in one of these forms.
        test: Those to evaluate with at the end.
        model_dir: The directory or gs:// URL for checkpoints, TensorBoard, report, metrics.
        task: A task, its name or its file; None takes the model's, or that of the dataset.
        params: The job's parameters, as a mapping or as an instance of the model's own class.
        optimizer: The name of one of the trainer's, or for a Keras model a Keras optimizer, whose
            rate may be a Keras schedule.
        loss: For a Keras model, a Keras loss, its name or a function.
        metrics: For a Keras model, Keras metrics, their names or functions.
        mode: `train`, `evaluate` or `train-and-evaluate`, which tests where there is a test split.
        callbacks: What to call between two loops of steps: tpu_training.Callbacks or Keras' own.
        tpu: A TPU's name, grpc://HOST:PORT, or `local`; None takes this machine's devices or
            what the environment names.
        tpu_project: The project of a TPU given by name.
        tpu_zone: Its zone.
        **settings: Parameters by name, such as epochs=3 or learning_rate=0.01.

    Raises:
        InputError: Something given is wrong; with every problem at once. The messages call
            parameters as the command line does.
        Interrupted: The process got SIGTERM; the progress is saved.
        TrainingError: The job failed; the last checkpoint is kept.
    """
    begun = time.monotonic()
    _begin(model_dir)
    values, problems = _values(params, settings), list[errors.InputError]()
    noted = functools.partial(_noted, problems)
    if mode not in MODES:
        problems.append(errors.InputError(f"mode={mode!r}: expected one of {', '.join(MODES)}"))
    start.prepare_tensorflow(tpu, True, values.get("backend"))
    if optimizer in _NAMED or (isinstance(optimizer, str) and isinstance(model, str)):
        values["optimizer"], optimizer = optimizer, None
    definition = noted(_definition, model, task, params)
    made = definition and noted(_params, definition, params, values)
    place, given = noted(_data, data, validation, test) or ("", None)
    heard = noted(checked, callbacks, "callbacks=")
    if problems:
        raise _with_places(problems, data, model_dir) from problems[0]
    job = Job(
        *(mode, tpu, tpu_project, tpu_zone, place, model_dir),
        model=_compiled(definition, optimizer, loss, metrics),
        params=made,
        callbacks=tuple(heard),
        given=given,
    )
    try:
        with supervision.supervised() as (shutdown, hang_timer):
            return start.run_job(job, shutdown, hang_timer, begun)
    except Exception as error:
        _raise_told(error)


def load(
    model_dir: str,
    *,
    model: str | CreateModel | None = None,
    task: str | Task | None = None,
    params: Params | None = None,
    best: bool = False,
) -> "RestoredModel":
    """Return the trained model of `model_dir` on this machine's CPU, in float32.

    `load(…).predict(features)` returns what the model makes of a batch, tensors by name, and
    `load(…).module` is the model itself. `fit(…, mode="evaluate")` evaluates it on a TPU.
    Arguments and errors are those of `export`.
    """
    _begin(model_dir)
    start.prepare_tensorflow(None, trains=False)
    from tpu_training.serving.model import restore_model

    try:
        return restore_model(model_dir, _given_model(model_dir, model, task, params), best)
    except Exception as error:
        _raise_told(error)


def evaluate(model: "Result | RestoredModel | str", data: Any) -> dict[str, float]:
    """Return the loss and the metrics of a trained model over `data`, by name.

    Every example counts once, as in the evaluations of a training.

    Args:
        model: What `fit` returned, which evaluates on the devices that it trained on; or what
            `load` returned, or a model directory as `load` takes it, for this machine's CPU.
        data: Examples in any form that `fit` takes, or a dataset's place, of which the test split.

    Raises:
        InputError: The data is not like that of the training.
    """
    try:
        figures: dict[str, float] = _trained(model).evaluate(data)
    except Exception as error:
        _raise_told(error)
    return figures


def predict(model: "Result | RestoredModel | str", data: Any) -> dict[str, Any]:
    """Return the predictions of a trained model for each example, NumPy arrays by name.

    Arguments and errors are those of `evaluate`, but `data` is features alone, or a Dataset, whose
    targets are left out. What `fit` returned takes no dataset's place. See Result for the names.
    """
    trained = _trained(model)
    one = trained.predict_all if hasattr(trained, "predict_all") else trained.predict
    from tpu_training.loop.evaluation import predict_given

    try:
        return predict_given(one, data)
    except Exception as error:
        _raise_told(error)


def _trained(model: Any) -> Any:
    """Return `model`, loaded if it is a directory."""
    if isinstance(model, str):
        return load(model)
    if not hasattr(model, "evaluate") or hasattr(model, "trainable_variables"):
        raise errors.InputError(
            f"model is a {type(model).__name__}; expected what fit or load returned, or a model "
            "directory"
        )
    return model


def export(
    model_dir: str,
    output: str,
    *,
    model: str | CreateModel | None = None,
    task: str | Task | None = None,
    params: Params | None = None,
    kind: str = "saved_model",
    best: bool = False,
    batch_size: int | None = None,
    data: str | None = None,
    test_examples: int = 2000,
) -> str:
    """Write the trained model of `model_dir` as others run it, and return a line about it.

    A notebook's own model or task is in no file, so it is given as `fit` got it.

    Args:
        model_dir: The directory or gs:// URL of the training's results.
        output: The directory or gs:// URL to write to.
        model: The function that `fit` was given, or the model's file if it was moved.
        task: The Task that `fit` was given.
        params: The instance that `fit` was given, if its class is the model's own.
        kind: `saved_model` or `tflite` (int8).
        best: Whether to take the best evaluation's checkpoint instead of the newest one.
        batch_size: A fixed batch size of the input; None takes any number.
        data: For tflite, another dataset than that of the training.
        test_examples: For tflite, how many test examples to measure its accuracy with.

    Raises:
        InputError: Something given is wrong, or the model is not that of `model_dir`.
        TrainingError: The result would not do.
    """
    _begin(model_dir)
    start.prepare_tensorflow(None, trains=False)
    if kind not in EXPORTED:
        raise errors.InputError(f"kind={kind!r}: expected one of {', '.join(EXPORTED)}")
    from tpu_training.serving.export import run_export

    try:
        given = _given_model(model_dir, model, task, params)
        return run_export(model_dir, output, kind, batch_size, data, given, test_examples, best)
    except Exception as error:
        _raise_told(error)


def write_data(
    directory: str,
    *,
    train: Arrays,
    test: Arrays,
    validation: Arrays | None = None,
    name: str = "data",
    class_names: Sequence[str] = (),
    text_length: int = 128,
    vocabulary: str | None = None,
    vocabulary_size: int = 8192,
) -> None:
    """Write arrays in memory as a dataset, which `fit` and the command line read.

    Args:
        directory: A new or empty directory, or a gs:// URL.
        train: Features and targets of the examples to train with. Features are bytes (examples,
            height, width[, channels]), token ids from 1 (examples, length) with 0 for padding, a
            list of texts, any other array, or a dictionary of arrays. Targets are whole numbers
            from 0 (examples,) for classes, 0 and 1 (examples, labels), floats (examples[,
            numbers]), a class for each token (-1: none) or pixel (255: none), a dictionary of
            several, or None. A third array has the examples' weights.
        test: Those to evaluate with at the end.
        validation: Those that choose the best checkpoint in between, if any.
        name: The dataset's name.
        class_names: A name for each class, label or number.
        text_length: The number of token ids that a text becomes.
        vocabulary: For texts, a `vocab.txt`, a `tokenizer.json` or SentencePiece's `.model`.
        vocabulary_size: The largest size of the vocabulary that is made from the training texts.

    Raises:
        InputError: The directory is used, or an array has a wrong shape or type.
    """
    start.set_up_buckets(os.environ)
    from tpu_training.data.arrays import source_of_arrays

    splits = {"train": train, "test": test}
    if validation is not None:
        splits["validation"] = validation
    refuse_used(directory)
    source = source_of_arrays(name, splits, class_names)
    storage = conversion.Storage(
        text_length=text_length, vocabulary=vocabulary, vocabulary_size=vocabulary_size
    )
    conversion.store(source, directory, storage)


def _given_model(
    model_dir: str, model: str | CreateModel | None, task: str | Task | None, params: Params | None
) -> ModelDefinition | None:
    """Return the model that is given for `model_dir`; None for that of its description."""
    from tpu_training.checkpoints.model_description import read_description

    if model is None and task is None:
        return None
    model = model or read_description(model_dir).model_in_file(model_dir)
    return _definition(model, task, params)


def _compiled(
    definition: ModelDefinition,
    optimizer: Any,
    loss: Any,
    metrics: Sequence[Any] | Mapping[str, Any],
) -> ModelDefinition:
    """Return `definition` with a Keras model that is compiled with what `fit` was given."""
    given = {"optimizer": optimizer, "loss": loss, "metrics": metrics or None}
    given = {name: each for name, each in given.items() if each is not None}
    if not given:
        return definition
    create = definition.create_model

    @functools.wraps(create)
    def compiled(*arguments: Any) -> Any:
        model = create(*arguments)
        if not hasattr(model, "compile"):
            raise errors.InputError(
                f"model={definition.name}: optimizer, loss and metrics of Keras need a Keras "
                f"model, but this is a {type(model).__name__}; name one of the trainer's "
                "optimizers, and pass losses and metrics as task=Task(…)"
            )
        # What is not given stays as the model was compiled.
        settings = {"optimizer": None, "loss": None, "metrics": None}
        if model.compiled:
            had = getattr(model._compile_metrics, "_user_metrics", None)
            settings = {"optimizer": model.optimizer, "loss": model.loss, "metrics": had}
            if loss is None:
                weights = getattr(model._compile_loss, "_user_loss_weights", None)
                settings["loss_weights"] = weights
        if isinstance(optimizer, str):
            given["optimizer"] = _keras_optimizer(optimizer)
        model.compile(**{**settings, **given})
        return model

    return replace(definition, create_model=compiled)


def _keras_optimizer(name: str) -> Any:
    """Return Keras' optimizer of that name; its own `get` knows no Lamb, among others."""
    import keras

    kinds = [kind for kind in vars(keras.optimizers).values() if isinstance(kind, type)]
    # Those with the word take other optimizers.
    by_name = {kind.__name__.lower(): kind for kind in kinds if "Optimizer" not in kind.__name__}
    if kind := by_name.get(name.lower()):
        return kind()
    raise errors.InputError(
        f"optimizer={name!r}: unknown; expected one of the trainer's, {', '.join(_NAMED)}, or of "
        f"Keras', {', '.join(sorted(by_name))}"
    )


def _definition(
    model: str | CreateModel, task: str | Task | None, params: Params | Mapping[str, Any] | None
) -> ModelDefinition:
    if isinstance(model, str):
        definition = registry.load_model(model)
    elif hasattr(model, "trainable_variables"):
        raise errors.InputError(
            f"model is a {type(model).__name__} that already exists, but its variables must be "
            "created on the devices that train; pass a function that creates and returns it"
        )
    elif callable(model):
        kind = type(params) if isinstance(params, Params) else KerasParams
        name = str(getattr(model, "__name__", type(model).__name__))
        definition = ModelDefinition(name, kind, registry.with_all_arguments(name, model), own=True)
    else:
        raise errors.InputError(
            f"model={model!r}: expected a model's name, the path of a .py file, or a function "
            "create_model(params, spec, seed)"
        )
    if isinstance(task, Task):
        return replace(definition, task=task)
    return tasks.with_task(definition, task)


def _values(given: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters by name; `settings` win over what is `given`."""
    if not isinstance(given, Params | Mapping | None):
        raise errors.InputError(f"params={given!r}: expected a mapping or the model's own class")
    return {**(asdict(given) if isinstance(given, Params) else given or {}), **settings}


def _params(definition: ModelDefinition, given: Any, values: Mapping[str, Any]) -> Params:
    kind = type(given) if isinstance(given, Params) else definition.params
    if not issubclass(kind, definition.params):
        raise errors.InputError(
            f"params={kind.__name__}(…): the model takes {definition.params.__module__}."
            f"{definition.params.__name__}, or a mapping"
        )
    return build_params({}, values.items(), (), kind)


def _noted(problems: list[errors.InputError], make: Callable[..., Any], *given: Any) -> Any:
    """Return what `make` returns; add the InputError that it raises to `problems`."""
    try:
        return make(*given)
    except errors.InputError as error:
        problems.append(error)
        return None


def _with_places(
    problems: Sequence[errors.InputError], data: Any, model_dir: str
) -> errors.ParamsError:
    """Return the error of `problems`, and of the places of a job that will not be run."""
    places = start.place_problems(data if isinstance(data, str) else None, model_dir)
    return errors.ParamsError([*map(str, problems), *places])


def _data(data: Any, validation: Any, test: Any) -> tuple[str, dict[str, Any] | None]:
    """Return where the data is, and the examples of each split if they are handed over."""
    more = {"validation": validation, "test": test}
    more = {split: examples for split, examples in more.items() if examples is not None}
    if isinstance(data, str):
        if more:
            raise errors.InputError(
                f"{' and '.join(more)}: data={data} names a dataset, which has its own splits; "
                "pass arrays or Datasets for all of them, or none"
            )
        return data, None
    if twice := sorted(set(more) & set(data if isinstance(data, Mapping) else ())):
        raise errors.InputError(
            f"{' and '.join(twice)}: data={{'{twice[0]}': …}} has such a split, too; pass it once"
        )
    splits = {**(data if isinstance(data, Mapping) else {"train": data}), **more}
    if "train" not in splits or set(splits) - set(SPLITS):
        raise errors.InputError(
            f"data has {', '.join(map(repr, splits)) or 'nothing'}; expected 'train', and "
            "optionally 'validation' and 'test', each with a tuple of features and targets or a "
            "Dataset"
        )
    return "data", splits


def _begin(model_dir: object) -> None:
    """Show the job's log, and as little else as the command line, where no logging is set up."""
    # Of a bucket's URL, pathlib makes a local path.
    if not isinstance(model_dir, str):
        raise errors.InputError(f"model_dir={model_dir!r}: expected a str, a path or gs:// URL")
    logger = logging.getLogger("tpu_training")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = TerminalHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # A library may set up the root's log later.
    logger.propagate = False
    quiet_libraries()


def _raise_told(error: Exception) -> NoReturn:
    """Raise `error` as one that a user can act on."""
    if isinstance(error, errors.Interrupted):
        # Python says nothing of an exception that ends the program with its exit code.
        logging.getLogger(__name__).warning("training interrupted: %s", error)
    if isinstance(error, errors.TrainingError):
        raise error
    raise errors.translate(error) from error
