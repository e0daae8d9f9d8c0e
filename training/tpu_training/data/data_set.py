"""Open a data set in a directory or bucket, or that of a user's function, and check it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data.function import (
    ENDLESS,
    DataFunction,
    is_endless,
    load_function,
)
from tpu_training.data.live_function import Form, LiveFunction, form_of, seed_of
from tpu_training.data.manifest import (
    FILE_NAME,
    NO_CLASS,
    TEST,
    TOKENS,
    TRAIN,
    VALIDATION,
    DataFile,
    Manifest,
    Split,
    is_function,
    no_manifest,
    parse_manifest,
    stored_spec,
)
from tpu_training.data.shards import Readable, Shards
from tpu_training.errors import DataError, InputError
from tpu_training.errors.catalog import user_line
from tpu_training.models.spec import LABELS, MASK, NOTHING, NUMBERS


@dataclass(frozen=True)
class DataSet:
    """A complete data set in `directory`, a path or gs:// URL.

    Attributes:
        damaged: The readable records of each file whose corrupt ones are skipped; the manifest
            counts only the readable ones.
        left_out: The number of skipped records in all files.
        held: The numbers of the records in each training file that are held out; the manifest
            counts them as the split `validation`, of the same files.
        function: The user's function that gives the examples, which then are in no files.
    """

    directory: str
    manifest: Manifest
    damaged: Mapping[str, Readable] = field(default_factory=dict)
    left_out: int = 0
    held: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    function: LiveFunction | None = None

    def paths(self, split: str) -> list[str]:
        """Return the paths of the files of `split`."""
        return [f"{self.directory}/{file.name}" for file in self.manifest.split(split).files]

    def shards(self, split: str) -> Shards:
        """Return the files of `split` for the input pipeline."""
        files_here = self.manifest.split(split).files
        names = [file.name for file in files_here]
        stored = {file.name: file.examples for file in stored_files(self)}
        shares = [file.bytes * file.examples // max(stored[file.name], 1) for file in files_here]
        damaged = {
            name: belongs(self, split, name, places) for name, places in self.damaged.items()
        }
        return Shards(
            tuple(self.paths(split)),
            tuple(file.examples for file in files_here),
            sum(shares),
            {f"{self.directory}/{name}": places for name, places in damaged.items()},
            {f"{self.directory}/{n}": self.held[n] for n in names if n in self.held},
            split != VALIDATION,
        )

    def read_file(self, name: str) -> tf.data.Dataset:
        """Return every readable record of the file called `name`, of whichever split."""
        path = f"{self.directory}/{name}"
        places = {path: self.damaged[name]} if name in self.damaged else {}
        return Shards((path,), (0,), 0, places).read(tf.constant(0))


def stored_files(data: DataSet) -> Iterator[DataFile]:
    """Yield each file once, with the number of all its records, of whichever split."""
    counts: dict[str, DataFile] = {}
    for split in data.manifest.splits.values():
        for file in split.files:
            before = counts[file.name].examples if file.name in counts else 0
            counts[file.name] = dataclasses.replace(file, examples=before + file.examples)
    yield from counts.values()


def belongs(data: DataSet, split: str, name: str, places: Readable) -> Readable:
    """Return those of the records at `places` in the file `name` that belong to `split`."""
    if name not in data.held:
        return places
    held = set(data.held[name].tolist())
    return tuple(place for place in places if (place[2] in held) == (split == VALIDATION))


def open_data(directory: str) -> DataSet:
    """Read the manifest in `directory` and check that every file exists with its size.

    Raises:
        DataError: With every missing file and every wrong size.
    """
    directory = directory.rstrip("/")
    path = f"{directory}/{FILE_NAME}"
    text = files.read_text(path)
    if text is None:
        raise no_manifest(directory)
    data = DataSet(directory, parse_manifest(text, path))
    sizes, problems = files.sizes(directory), []
    for file in stored_files(data):
        if file.name not in sizes:
            problems.append(f"{file.name} is missing")
        elif sizes[file.name] != file.bytes:
            problems.append(f"{file.name} has {sizes[file.name]} bytes, expected {file.bytes}")
    if problems:
        raise DataError(f"--data={directory}: {'; '.join(problems)}; copy the files there again")
    return data


def check_readable(data: DataSet, cluster: Cluster) -> None:
    """Check that every host of the cluster can read the data, not only this process.

    A TPU's host reads only buckets ("File system scheme '[local]' not implemented"), and any other
    machine has its own files.

    Raises:
        InputError: A host can't read the data.
    """
    path = f"{data.directory}/{FILE_NAME}"
    for host in cluster.worker_hosts():
        try:
            with tf.device(host):
                tf.io.read_file(path).numpy()
        except (tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
            raise InputError(
                f"--data={data.directory}: is on this machine, where the worker at "
                f"{cluster.endpoint} can't read it; copy it to a bucket that both can read, "
                "and give its gs:// URL"
            ) from error


_SPLITS = (TRAIN, TEST, VALIDATION)
_BATCH = 1024

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Looked:
    """How many examples a split has, its highest class and its highest token id."""

    examples: int
    target: int = 0
    token: int = 0


def open_given(data: str, seed: int) -> DataSet:
    """Return the data set that --data names: of a function in a file, or in a directory."""
    return open_function(data, seed) if is_function(data) else open_data(data)


def open_function(path: str, seed: int) -> DataSet:
    """Return the data set of the function in the file `path`.

    Reads all examples once, unless the function says their number and the file `class_names`.

    Raises:
        InputError: The function fails; or, a DataError, its examples are no good. With FILE:LINE.
    """
    function = load_function(path, "data")
    found = {split: function(split, seed_of(seed, 0)) for split in _SPLITS}
    if found[TRAIN] is None:
        raise DataError(f"{function.place}: returned None for the split {TRAIN}")
    given = {split: rows for split, rows in found.items() if rows is not None}
    forms = {
        split: _form(rows, f"{function.place}: split {split}") for split, rows in given.items()
    }
    form = forms[TRAIN]
    for split, other in forms.items():
        if other != form:
            raise DataError(f"{function.place}: split {split} yields {other}, split {TRAIN} {form}")
    looked = {
        split: _look(rows, form, function, f"{function.place}: split {split}")
        for split, rows in given.items()
    }
    spec = stored_spec(
        form.encoding,
        form.shape,
        _classes(form, looked, function),
        1 + max(each.token for each in looked.values()) if form.encoding == TOKENS else 0,
        form.targets,
    )
    name = path.rpartition("/")[2].removesuffix(".py")
    splits = {split: _split(split, each.examples) for split, each in looked.items()}
    counts = {split: each.examples for split, each in looked.items()}
    live = LiveFunction(function, form.encoding, spec, counts)
    return DataSet(
        path, Manifest(name, spec, form.encoding, splits, function.class_names), function=live
    )


def _form(rows: tf.data.Dataset, place: str) -> Form:
    if is_endless(rows):
        raise DataError(f"{place} {ENDLESS}")
    try:
        first = next(iter(rows), None)
    except tf.errors.OpError as error:
        raise _failed(error, place) from error
    if first is None:
        raise DataError(f"{place} is empty")
    return form_of(first, place)


def _look(rows: tf.data.Dataset, form: Form, function: DataFunction, place: str) -> _Looked:
    """Count the examples, and find the highest class and token, where nothing else says so."""
    count = int(rows.cardinality())
    named = form.targets in (LABELS, NUMBERS, NOTHING) or function.class_names
    if count >= 0 and named and form.encoding != TOKENS:
        return _Looked(count)
    logger.info("data: looking once through the examples of %s", place)

    def highest(*example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        token = tf.reduce_max(example[0]) if form.encoding == TOKENS else 0
        return _highest_class(example, form), tf.cast(token, tf.int64)

    tops = [(-1, -1)]
    examples = 0
    try:
        for targets, tokens in rows.map(highest).batch(_BATCH).as_numpy_iterator():
            examples += len(targets)
            tops.append((int(targets.max()), int(tokens.max())))
    except tf.errors.OpError as error:
        raise _failed(error, place) from error
    target, token = np.max(tops, axis=0).tolist()
    return _Looked(examples, target, token)


def _highest_class(example: tuple[tf.Tensor, ...], form: Form) -> tf.Tensor:
    if form.targets in (LABELS, NUMBERS, NOTHING):
        return tf.zeros((), tf.int64)
    classes = tf.cast(example[1], tf.int64)
    if form.targets == MASK:
        classes = tf.where(classes == NO_CLASS, tf.zeros((), tf.int64), classes)
    return tf.reduce_max(classes)


def _classes(form: Form, looked: Mapping[str, _Looked], function: DataFunction) -> int:
    classes = form.width or len(function.class_names) or 1 + max(e.target for e in looked.values())
    if function.class_names and len(function.class_names) != classes:
        raise DataError(
            f"{function.place}: class_names has {len(function.class_names)} names for {classes} "
            f"{form.targets}"
        )
    return classes


def _split(name: str, examples: int) -> Split:
    """Describe a split as if it were one file."""
    return Split(examples, (DataFile(name, examples, 0, ""),))


def _failed(error: tf.errors.OpError, place: str) -> DataError:
    line, reason = user_line(error) or place, error.message.strip().splitlines()[-1]
    return DataError(f"{line}: {reason}")
