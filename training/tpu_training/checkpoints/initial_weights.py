"""Start a training with weights from elsewhere: read them, map their names, assign them.

Files come from the internet, so nothing in them is executed: no pickles, no HDF5 links to other
files, no archives that unpack to many times their size.
"""

from __future__ import annotations

import io
import logging
import math
import re
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.checkpoints.reader import averaged_keys, newest_whole
from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.errors import InputError, require
from tpu_training.models.keras import KerasModule
from tpu_training.models.model import some, split_patterns, variable_paths
from tpu_training.models.params import Params

# PyTorch has the outputs of a kernel first: (out, in) and (out, in, height, width).
_FROM_TORCH = {2: (1, 0), 4: (2, 3, 1, 0)}

# --init_map=bert: Hugging Face's names of BERT, as `_joined` leaves them, and those of `bert`.
_BERT_MAP = (
    "embeddings/word_embeddings/weight=tokens/table,"
    "embeddings/position_embeddings/weight=positions/table,"
    "embeddings/LayerNorm/weight=norm/scale,"
    "embeddings/LayerNorm/bias=norm/offset,"
    "encoder/layer/*/attention/self/all/weight=layers/*/attention/project/kernel,"
    "encoder/layer/*/attention/self/all/bias=layers/*/attention/project/bias,"
    "encoder/layer/*/attention/output/dense/weight=layers/*/attention/combine/kernel,"
    "encoder/layer/*/attention/output/dense/bias=layers/*/attention/combine/bias,"
    "encoder/layer/*/attention/output/LayerNorm/weight=layers/*/attention_norm/scale,"
    "encoder/layer/*/attention/output/LayerNorm/bias=layers/*/attention_norm/offset,"
    "encoder/layer/*/intermediate/dense/weight=layers/*/widen/kernel,"
    "encoder/layer/*/intermediate/dense/bias=layers/*/widen/bias,"
    "encoder/layer/*/output/dense/weight=layers/*/narrow/kernel,"
    "encoder/layer/*/output/dense/bias=layers/*/narrow/bias,"
    "encoder/layer/*/output/LayerNorm/weight=layers/*/feed_forward_norm/scale,"
    "encoder/layer/*/output/LayerNorm/bias=layers/*/feed_forward_norm/offset"
)

# What tables of a row for each token or place are called, here and in Keras.
_TABLES = ("table", "embeddings")

# A replacement for names of the file that match a pattern.
_Rule = tuple[str, "re.Pattern[str]", str]
Array = npt.NDArray[Any]
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# What checkpoints hold next to weights: an optimizer's moments, and TensorFlow's own notes.
_NO_WEIGHTS = ("optimizer", "_optimizer", "record/", "save_counter", "_CHECKPOINTABLE")
_MODEL = "model/"
_ENDINGS = (".weights.h5", ".keras", ".h5", ".hdf5")
_WEIGHTS = "model.weights.h5"
# Compression hardly makes weights smaller. Small files may announce what they like.
_MOST_TIMES, _SMALL_BYTES = 100, 1 << 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """The names that matched, and those that did not, on both sides.

    `fresh` has the model's variables with the reason why they keep their first values; `unused` the
    file's weights that the model has no variable for.
    """

    matched: list[str]
    fresh: dict[str, str]
    unused: list[str]


def load_initial_weights(cluster: Cluster, params: Params, model: tf.Module) -> Loaded | None:
    """Assign the weights in `params.init_from` to `model`; None where it is empty.

    What has no weight of its name and shape there keeps its first value, and is logged.

    Raises:
        InputError: Nothing can be read there, or nothing of it fits.
    """
    if not params.init_from:
        return None
    by_keras = params.init_from.endswith(_ENDINGS) and not params.init_map
    if isinstance(model, KerasModule) and by_keras:
        loaded = _loaded_by_keras(cluster, params.init_from, model)
    else:
        loaded = _loaded_by_name(cluster, params, model)
    _log(params.init_from, loaded)
    return loaded


def check_first_weights(cluster: Cluster, model: tf.Module) -> None:
    """Raise InputError where hosts that train together begin with different weights."""
    if cluster.processes == 1:
        return
    content = 0
    for variable in model.variables:
        content = zlib.crc32(variable.numpy().tobytes(), content)
    if len({*cluster.spread(content)}) > 1:
        raise InputError(
            "--model: begins with different weights on each host; draw them from the `seed` that "
            "create_model gets, and start with the same --init_from on every host"
        )


def _loaded_by_name(cluster: Cluster, params: Params, model: tf.Module) -> Loaded:
    stored, rules = read_weights(params.init_from), params.init_map
    variables = dict(variable_paths(model))
    if rules == "bert":
        length = variables["positions/table"].shape[0] if "positions/table" in variables else 0
        stored, rules = _joined(stored, length), _BERT_MAP
    mapped = map_names(rules, stored)
    weights = {name: stored[theirs] for theirs, name in mapped.items()}
    misfits = {name: _misfit(name, variable, weights) for name, variable in variables.items()}
    fresh = {name: reason for name, reason in misfits.items() if reason}
    matched = [name for name in variables if name not in fresh]
    if not matched:
        raise InputError(
            f"--init_from={params.init_from}: none of its weights fits; it has "
            f"{some(sorted(weights))}; the model has {some(list(variables))}; map the names with "
            "--init_map=THEIRS=OURS,…"
        )
    with cluster.on_loop_device():
        for name in matched:
            value, order = weights[name].read(), _order(name, weights[name])
            value = np.transpose(value, order) if order else value
            if len(value.shape) and len(value) < variables[name].shape[0]:
                logger.info("init: %s has a row more, which keeps its first values", name)
                value = np.concatenate([value, variables[name].numpy()[len(value) :]])
            variables[name].assign(value.astype(variables[name].dtype.as_numpy_dtype))
    unused = sorted(theirs for theirs in stored if mapped.get(theirs) not in variables)
    return Loaded(matched, fresh, unused)


def _joined(stored: Mapping[str, Stored], length: int) -> dict[str, Stored]:
    """Return a BERT of Hugging Face with its parts as `bert` has them.

    Query, key and value are one matrix, the first `length` positions have the first kind of token
    added, and names lack the prefix and the old words of some files.
    """
    found = {
        re.sub("gamma$", "weight", re.sub("beta$", "bias", name.removeprefix("bert/"))): weight
        for name, weight in stored.items()
    }
    for name in [name for name in found if "/self/query/" in name]:
        parts = [name.replace("query", part) for part in ("query", "key", "value")]
        if found.keys() >= set(parts):
            values = [found.pop(part).read() for part in parts]
            joined = _in_memory(np.concatenate(values), torch=True)
            found[name.replace("query", "all")] = joined
    places, kinds = (f"embeddings/{each}_embeddings/weight" for each in ("position", "token_type"))
    if places in found and kinds in found:
        values = found[places].read()[:length] + found.pop(kinds).read()[0]
        found[places] = _in_memory(values)
    return found


def _log(path: str, loaded: Loaded) -> None:
    """Say what did not match: a misspelt map would train a head on random weights unnoticed."""
    count = len(loaded.matched) + len(loaded.fresh)
    logger.info("init: %d of %d variables from %s", len(loaded.matched), count, path)
    if loaded.fresh:
        reasons = [f"{name} ({reason})" for name, reason in loaded.fresh.items()]
        logger.warning("init: left fresh: %s", some(reasons))
    if loaded.unused:
        logger.info("init: unused in the file: %s", some(loaded.unused))


def _misfit(name: str, variable: tf.Variable, weights: Mapping[str, Stored]) -> str:
    """Return why the variable `name` can't have a weight of the file; "" where it can."""
    if name not in weights:
        return "not there"
    stored, shape = weights[name], tuple(variable.shape)
    order = _order(name, stored) or range(len(stored.shape))
    found = tuple(stored.shape[axis] for axis in order)
    # A tokenizer's padding may be the id after those that the weights were trained with.
    one_more = name.endswith(_TABLES) and found == (shape[0] - 1, *shape[1:])
    return "" if found == shape or one_more else f"here {shape}, there {found}"


def _order(name: str, stored: Stored) -> tuple[int, ...] | None:
    """Return the order of axes that makes a PyTorch kernel one of TensorFlow."""
    return _FROM_TORCH.get(len(stored.shape)) if stored.torch and name.endswith("kernel") else None


def map_names(text: str, names: Iterable[str]) -> dict[str, str]:
    """Return the model's name for each of the file's `names`, by the first rule that matches.

    A rule is THEIRS=OURS; what a `*` of THEIRS stands for takes the place of that `*` in OURS. A
    name without a rule is the same on both sides; an empty OURS leaves it out.

    Raises:
        InputError: A rule has another form, or matches none of `names`.
    """
    rules = [_rule(text, *pair) for pair in _pairs(text)]
    known, found, used = list(names), {}, set()
    for name in known:
        for written, pattern, ours in rules:
            if match := pattern.fullmatch(name):
                found[name] = _filled(ours, match.groups())
                used.add(written)
                break
        else:
            found[name] = name
    if unused := [written for written, *_ in rules if written not in used]:
        raise InputError(
            f"--init_map: {', '.join(unused)} matches no weight that an earlier rule left; "
            f"the file has {some(sorted(known))}"
        )
    return {theirs: ours for theirs, ours in found.items() if ours}


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return (theirs, ours) of each rule of --init_map."""
    pairs = []
    for part in split_patterns(text):
        theirs, equals, ours = part.partition("=")
        if not (theirs and equals):
            raise InputError(
                f"--init_map={text}: {part!r} is not THEIRS=OURS, such as 'encoder/*=*'"
            )
        pairs.append((theirs, ours))
    return pairs


def _rule(text: str, theirs: str, ours: str) -> _Rule:
    if ours.count("*") > theirs.count("*"):
        raise InputError(f"--init_map={text}: {ours} has more * than {theirs}")
    return theirs, re.compile("(.*)".join(map(re.escape, theirs.split("*")))), ours


def _filled(ours: str, parts: tuple[str, ...]) -> str:
    pieces = ours.split("*")
    taken = zip(parts, pieces[1:], strict=False)  # OURS may leave parts out.
    return pieces[0] + "".join(part + piece for part, piece in taken)


class Stored(NamedTuple):
    """A weight in a file.

    `torch` says that a kernel has its outputs first, as PyTorch stores it.
    """

    shape: tuple[int, ...]
    read: Callable[[], Array]
    torch: bool = False


def read_weights(path: str) -> Mapping[str, Stored]:
    """Return what is stored at `path` by name, without an optimizer's moments.

    Raises:
        InputError: There is nothing of a form that can be read.
    """
    readers: dict[str, Callable[[bytes], dict[str, Stored]]] = {
        ".safetensors": _safetensors,
        ".h5": _keras_weights,
        ".hdf5": _keras_weights,
        ".keras": lambda content: _keras_weights(unpack_keras(content)),
    }
    for ending, read in readers.items():
        if path.endswith(ending):
            return _read_file(path, read)
    prefix = _checkpoint_in(path.rstrip("/"))
    if prefix is None:
        raise InputError(
            f"--init_from={path} is not a checkpoint; expected a model directory of this trainer, "
            "a TensorFlow checkpoint (PREFIX of PREFIX.index, or its folder), a SavedModel, or a "
            "file .weights.h5, .h5, .keras or .safetensors"
        )
    return _checkpoint(prefix)


def _read_file(path: str, read: Callable[[bytes], dict[str, Stored]]) -> dict[str, Stored]:
    if files.size(path) is None:
        raise InputError(f"--init_from={path}: there is no such file")
    try:
        return read(files.read_bytes(path))
    except InputError:
        raise
    except Exception as error:  # Each library has its own errors for a broken file.
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"--init_from={path}: can't be read ({type(error).__name__}: {reason})"
        ) from error


def _safetensors(content: bytes) -> dict[str, Stored]:
    library = require("safetensors", "safetensors", "safetensors", "--init_from=….safetensors")
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        with library.safe_open(file.name, "np") as opened:
            torch = (opened.metadata() or {}).get("format") == "pt"
            values = {name: opened.get_tensor(name) for name in list(opened.keys())}
    return {name.replace(".", "/"): _in_memory(value, torch) for name, value in values.items()}


def _keras_weights(content: bytes) -> dict[str, Stored]:
    library = require("h5py", "h5py", "cpu", "--init_from=….h5")
    found: dict[str, Stored] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, library.Dataset) and not name.startswith(_NO_WEIGHTS):
            found[name.partition(":")[0]] = _in_memory(np.asarray(node))

    with library.File(io.BytesIO(check_hdf5(content)), "r") as file:
        file.visititems(visit)
    return found


def _checkpoint_in(path: str) -> str | None:
    """Return the prefix of the checkpoint that `path` means."""
    if files.size(f"{path}.index") is not None:
        return path
    if files.size(f"{path}/variables/variables.index") is not None:
        return f"{path}/variables/variables"
    for folder in (f"{path}/checkpoints", path):
        if tf.io.gfile.isdir(folder) and (whole := newest_whole(folder)):
            return whole
    newest: str | None = tf.train.latest_checkpoint(path)
    return newest


def _checkpoint(prefix: str) -> dict[str, Stored]:
    reader = tf.train.load_checkpoint(prefix)
    shapes: Mapping[str, list[int]] = reader.get_variable_to_shape_map()
    found = {
        key.removesuffix(_VALUE): Stored(tuple(shape), partial(reader.get_tensor, key))
        for key, shape in shapes.items()
        if not key.startswith(_NO_WEIGHTS) and ".OPTIMIZER_SLOT" not in key
    }
    # Of a checkpoint of this trainer the model alone, with averaged weights where it has them.
    model = {key.removeprefix(_MODEL): found[key] for key in found if key.startswith(_MODEL)}
    for name, key in averaged_keys(shapes).items():
        model[name] = found[key.removesuffix(_VALUE)]
    return model or found


def _in_memory(value: Array, torch: bool = False) -> Stored:
    return Stored(value.shape, lambda: value, torch)


def _loaded_by_keras(cluster: Cluster, path: str, model: KerasModule) -> Loaded:
    """Load `path` as Keras does, layer by layer.

    Raises:
        InputError: It is missing, Keras can't read it, or it has none of the model's layers.
    """
    names = [name for name, _ in variable_paths(model)]
    variables = {name: each for name, each in variable_paths(model) if each.dtype.is_floating}
    first = {name: variable.numpy() for name, variable in variables.items()}
    # Keras does not say what it left alone: that is still NaN afterwards.
    for variable in variables.values():
        variable.assign(tf.fill(variable.shape, tf.constant(np.nan, variable.dtype)))
    found: set[str] = set()
    try:
        with cluster.strategy.scope():
            _load(path, model.keras())
        found = {name for name, each in variables.items() if not np.isnan(each.numpy()).any()}
    finally:
        for name in variables.keys() - found:
            variables[name].assign(first[name])
    if not found:
        raise InputError(
            f"--init_from={path}: Keras finds no layer of this model in it; the file's variables "
            f"are {some(names)}"
        )
    fresh = {name: "missing, or of another shape" for name in names if name not in found}
    return Loaded([name for name in names if name in found], fresh, [])


def _load(path: str, model: Any) -> None:
    ending = next(ending for ending in _ENDINGS if path.endswith(ending))
    # Of files in the old form Keras takes layers by name, else it wants all of them.
    options = {"by_name": True} if ending in (".h5", ".hdf5") else {}
    if files.size(path) is None:
        raise InputError(f"--init_from={path}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="weights-") as folder, warnings.catch_warnings():
        local = Path(folder, f"given{ending}")
        content = files.read_bytes(path)
        local.write_bytes(content)
        try:
            check_hdf5(unpack_keras(content) if ending == ".keras" else content)
            # The log names the variables that were left out.
            warnings.simplefilter("ignore")
            model.load_weights(str(local), skip_mismatch=True, **options)
        except Exception as error:  # Keras has all kinds of errors for a file that it can't take.
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"--init_from={path}: Keras can't load it ({type(error).__name__}: {reason})"
            ) from error


def unpack_keras(content: bytes) -> bytes:
    """Return the weights in a .keras file. Raises ValueError."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(part.file_size for part in archive.infolist())
        _refuse_bomb(unpacked, content)
        return archive.read(_WEIGHTS)


def check_hdf5(content: bytes) -> bytes:
    """Return the HDF5 file; raise ValueError if it refers to other files or is a bomb.

    HDF5 can keep an array in any file of the machine, from where it would get into checkpoints
    (CVE-2026-1669), and announce sizes of which nothing is stored.
    """
    library = require("h5py", "h5py", "cpu", "--init_from=….h5")

    announced = 0

    def visit(name: str, node: Any) -> None:
        nonlocal announced
        if isinstance(node, library.Group):
            for key in node:
                if not isinstance(node.get(key, getlink=True), library.HardLink):
                    raise ValueError(f"{name}/{key} is a link, perhaps to another file")
        elif isinstance(node, library.Dataset):
            if node.external or node.is_virtual:
                raise ValueError(f"{name} is stored in other files")
            announced += math.prod(node.shape or ()) * node.dtype.itemsize

    with library.File(io.BytesIO(content), "r") as file:
        visit("", file)
        file.visititems(visit)
    _refuse_bomb(announced, content)
    return content


def _refuse_bomb(announced: int, content: bytes) -> None:
    if announced > max(_SMALL_BYTES, _MOST_TIMES * len(content)):
        raise ValueError(f"{len(content)} bytes announce {announced}, as no weights do")
