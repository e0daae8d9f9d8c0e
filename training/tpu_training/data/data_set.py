"""Open a dataset in a directory or bucket, of a user's function, or in memory, and check it."""

import contextlib
import dataclasses
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.eager import context as eager

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files, function as functions, manifest as manifests, shards
from tpu_training.data.shards import Shards
from tpu_training.errors import DataError, InputError
from tpu_training.models.params import CACHE_MEMORY, STREAM, Params

# A conversion says every ten seconds that it is alive, but not while its source gives nothing.
_PATIENCE_SECONDS = 900.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet:
    """A complete dataset in `directory`, a path or gs:// URL.

    Attributes:
        held: The numbers of the records in each training file that are held out; the manifest
            counts them as the split `validation`, of the same files.
        function: The user's function that gives the examples, which then are in no files.
        growth: How far its conversion is, until it has ended.
    """

    directory: str
    manifest: manifests.Manifest
    held: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    function: functions.LiveFunction | None = None
    growth: "Growth | None" = None

    def paths(self, split: str) -> list[str]:
        """Return the paths of the files of `split`."""
        return [f"{self.directory}/{file.name}" for file in self.manifest.split(split).files]

    def shards(self, split: str) -> Shards:
        """Return the files of `split` for the input pipeline."""
        files_here = self.manifest.split(split).files
        names = [file.name for file in files_here]
        # A file that two splits share counts for each by its share of the records.
        stored = {file.name: file.examples for file in stored_files(self)}
        shares = [file.bytes * file.examples // max(stored[file.name], 1) for file in files_here]
        return Shards(
            tuple(self.paths(split)),
            tuple(file.examples for file in files_here),
            sum(shares),
            {f"{self.directory}/{n}": self.held[n] for n in names if n in self.held},
            split != manifests.VALIDATION,
            progress=self.growth.path if self.growth and split == manifests.TRAIN else "",
        )


def stored_files(data: DataSet) -> Iterator[manifests.DataFile]:
    """Yield each file once, with the number of all its records, of whichever split."""
    counts: dict[str, manifests.DataFile] = {}
    for split in data.manifest.splits.values():
        for file in split.files:
            before = counts[file.name].examples if file.name in counts else 0
            counts[file.name] = dataclasses.replace(file, examples=before + file.examples)
    yield from counts.values()


class Growth:
    """How far the conversion of a dataset is, which finishes one group of files after the other."""

    def __init__(self, data: "DataSet", alive: Callable[[], None]) -> None:
        """Look for the files of `data`; call `alive` now and then while waiting."""
        self.path = f"{data.directory}/{manifests.PROGRESS}"
        self._directory, self._manifest, self._alive = data.directory, data.manifest, alive
        self._files = data.shards(manifests.TRAIN)
        self._said = ""
        self.finished = 0
        self._look()

    def _look(self) -> bool:
        """Return whether the conversion has said anything since the last look."""
        before, said = self._said, files.read_text(self.path)
        if said is None:
            raise DataError(
                f"--data={self._directory}: its conversion failed and removed what was there; "
                "mend its source, convert again, and train into a new --model-dir"
            )
        finished = int(said[: manifests.DIGITS])
        if finished != self.finished and self._is_replaced():
            raise DataError(
                f"--data={self._directory}: another conversion writes there now; train with its "
                "data into a new --model-dir"
            )
        self._said, self.finished = said, finished
        return before != self._said

    def _is_replaced(self) -> bool:
        # Of a plan that is written at this moment TensorFlow may read a part. The next one tells.
        with contextlib.suppress(DataError):
            plan = _read_plan(self._directory)
            return plan is not None and not plan.is_of(self._manifest)
        return False

    def has(self, examples: int) -> bool:
        """Return whether the files of the first so many `examples` of a training are there."""
        return self.finished >= self._files.files_until(examples)

    def wait(self, examples: int, check: Callable[[], None]) -> None:
        """Wait for the files of the first so many `examples`, and call `check` until then.

        Raises:
            DataError: The conversion has failed, or said nothing for too long.
        """
        heard = time.monotonic()
        while not self.has(examples):
            if self._look():
                heard = time.monotonic()
                logger.info("data: %s", self.describe())
                continue
            if time.monotonic() > heard + _PATIENCE_SECONDS:
                raise DataError(
                    f"--data={self._directory}: {self.describe()}, and the conversion has said "
                    f"nothing for {_PATIENCE_SECONDS:.0f} s; start `tpu-training data convert` "
                    "with the same options again, and the training; both continue"
                )
            check()
            self._alive()
            time.sleep(shards.LOOK_SECONDS)

    def describe(self) -> str:
        """Say how much is there."""
        return f"{self.finished} of {len(self._files.paths)} training files are there"


def _read_plan(directory: str) -> manifests.Manifest | None:
    path = f"{directory}/{manifests.PLAN}"
    text = files.read_text(path)
    return None if text is None else manifests.parse_manifest(text, path)


def _open_growing(directory: str, streams: bool, alive: Callable[[], None]) -> DataSet:
    """Return a dataset that is still converted. Raises DataError if `streams` is false."""
    plan = _read_plan(directory)
    if plan is None:
        raise manifests.no_manifest(directory)
    data = DataSet(directory, plan)
    growth = Growth(data, alive)
    if not streams:
        raise DataError(
            f"--data={directory}: is still converted, and {growth.describe()}; wait until its "
            f"{manifests.FILE_NAME} is there, or begin now with --order=stream"
        )
    return dataclasses.replace(data, growth=growth)


def open_data(
    directory: str, streams: bool = False, alive: Callable[[], None] = lambda: None
) -> DataSet:
    """Read the manifest in `directory` and check that every file exists with its size.

    A dataset that is still converted is opened if it `streams`; `alive` is called while a training
    waits for its files.

    Raises:
        DataError: With every missing file and every wrong size.
    """
    directory = directory.rstrip("/")
    path = f"{directory}/{manifests.FILE_NAME}"
    text = files.read_text(path)
    if text is None:
        return _open_growing(directory, streams, alive)
    data = DataSet(directory, manifests.parse_manifest(text, path))
    # Sizes find an interrupted copy in one request; checksums would read the whole dataset.
    sizes, problems = files.sizes(directory), []
    for file in stored_files(data):
        if file.name not in sizes:
            problems.append(f"{file.name} is missing")
        elif sizes[file.name] != file.bytes:
            problems.append(f"{file.name} has {sizes[file.name]} bytes, expected {file.bytes}")
    if data.manifest.vocabulary and data.manifest.vocabulary not in sizes:
        problems.append(f"{data.manifest.vocabulary} is missing")
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
    path = data.growth.path if data.growth else f"{data.directory}/{manifests.FILE_NAME}"
    if data.growth and cluster.processes > 1:
        raise InputError(
            f"--data={data.directory}: is still converted, which only a training of one process "
            f"may read, and this one has {cluster.processes}; wait for {manifests.FILE_NAME}"
        )
    for host in cluster.worker_hosts():
        try:
            with tf.device(host):
                tf.io.read_file(path).numpy()
        except (tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
            raise InputError(
                f"--data={data.directory}: is on this machine, where the worker at "
                f"{cluster.endpoint} can't read it; copy it to a bucket that both can read, and "
                "pass its gs:// URL"
            ) from error


def check_order(data: DataSet, params: Params) -> None:
    """Raise InputError for what does not hold for files in the order in which they were written."""
    if params.order != STREAM:
        return
    wrong = ""
    if data.function:
        place = data.function.function.place
        wrong = f"--order=stream: reads files, and {place} is a function; omit it"
    elif params.cache == CACHE_MEMORY:
        wrong = "--cache=memory: keeps all examples for another order than --order=stream; omit one"
    elif data.growth and params.validation_fraction:
        wrong = (
            f"--validation_fraction={params.validation_fraction:g}: would hold out training "
            f"examples of {data.directory}, which are not all there; convert with "
            "--validation-fraction, or train without --evaluation_interval"
        )
    if wrong:
        raise InputError(wrong)


def open_given(
    data: str, seed: int, alive: Callable[[], None] = lambda: None, streams: bool = False
) -> DataSet:
    """Return the dataset that --data names: of a function in a file, or in a directory."""
    if manifests.is_function(data):
        return open_function(data, seed, alive)
    return open_data(data, streams, alive)


def open_function(path: str, seed: int, alive: Callable[[], None] = lambda: None) -> DataSet:
    """Return the dataset of the function in the file `path`, each split as if it were one file.

    `alive` is called now and then while its examples are counted.

    Raises:
        InputError: The function fails, or its examples can't be trained on; with FILE:LINE.
    """
    name = path.rpartition("/")[2].removesuffix(".py")
    return of_function(functions.load_function(path, "data"), name, seed, path, alive)


def of_function(
    function: functions.DataFunction,
    name: str,
    seed: int,
    directory: str = "",
    alive: Callable[[], None] = lambda: None,
) -> DataSet:
    """Return the dataset called `name` of a data function. Raises as `open_function`."""
    live = functions.look(function, functions.seed_of(seed, 0), alive)
    splits = {
        split: manifests.Split(count, (manifests.DataFile(split, count, 0, ""),))
        for split, count in live.examples.items()
    }
    names = live.function.class_names
    manifest = manifests.Manifest(
        name, live.spec, live.encoding, splits, names, weighted=live.weighted
    )
    return DataSet(directory or name, manifest, function=live)


# What a program hands over in memory: arrays, a tf.data.Dataset, a Keras PyDataset. Each becomes a
# data function, so that it is read, dealt to hosts and resumed like one in a file.

# These shuffle and cache with a state outside of the graph, which another pass would not find.
# Their first versions have none.
_SHUFFLE, _CACHE = "ShuffleDatasetV3", "CacheDatasetV2"
_WITHOUT_STATE = {_SHUFFLE: "ShuffleDataset", _CACHE: "CacheDataset"}
_numbers = itertools.count()
# Examples of arrays that are gathered at a time.
_GATHERED = 1024
# What makes other rows of those before.
_REMAKES = re.compile("[Bb]atchDataset|FlatMap|Interleave|Window")


def given_function(
    splits: Mapping[str, Any], class_names: Sequence[str] = (), *, shuffles: bool = True
) -> functions.DataFunction:
    """Return the data function of `splits`, each of (features, targets) or a Dataset.

    Args:
        splits: The examples of each split.
        class_names: A name for each class, label or number.
        shuffles: Whether arrays to train with have another order in each epoch.

    Raises:
        DataError: One of them is none of these, or its leaves don't fit together.
    """
    made = {name: _given(value, f"data['{name}']") for name, value in splits.items()}

    def dataset(split: str, context: functions.Context) -> tf.data.Dataset | None:
        if split not in made:
            return None
        return made[split](shuffles and split == manifests.TRAIN, context.seed)

    function = tf.autograph.experimental.do_not_convert(dataset)
    return functions.DataFunction(function, "data", tuple(class_names))


# whether to shuffle, the epoch's seed -> its examples
_Rows = Callable[[bool, Any], tf.data.Dataset]


def _given(value: Any, path: str) -> _Rows:
    if isinstance(value, tf.data.Dataset):
        return _of_dataset(value, path)
    if isinstance(value, tuple) and (len(value) == 2 or (len(value) == 3 and value[1] is not None)):
        return _of_arrays(value, path)
    if hasattr(value, "__getitem__") and hasattr(value, "num_batches"):
        return _of_dataset(_batches(value, path), path)
    if isinstance(value, tuple) and len(value) == 3:
        raise DataError(f"{path} {functions.NO_TARGETS}")
    size = f" of {len(value)}" if isinstance(value, tuple) else ""
    raise DataError(
        f"{path} is a {type(value).__name__}{size}; expected a tuple of features and targets, with "
        "weights if you like, a tf.data.Dataset or a keras.utils.PyDataset"
    )


def _of_arrays(given: Sequence[Any], path: str) -> _Rows:
    """Return examples of arrays in memory, in another order in each epoch."""
    lengths: dict[str, int] = {}

    def tensor(values: Any, name: str) -> tf.Tensor:
        made = _tensor(values, f"{path}: {name}")
        lengths[name] = int(made.shape[0])
        return made

    def leaves(values: Any, name: str) -> Any:
        if not isinstance(values, Mapping):
            return tensor(values, name)
        return {key: tensor(each, f"{name}/{key}") for key, each in values.items()}

    named = zip(given, ("features", "targets", "weights"), strict=False)
    parts = tuple(leaves(values, name) for values, name in named if values is not None)
    if len(set(lengths.values())) > 1 or not all(lengths.values()):
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise DataError(f"{path}: expected the same number of examples in each, but {told}")
    count = next(iter(lengths.values()))

    def rows(shuffles: bool, seed: Any) -> tf.data.Dataset:
        order = tf.range(count)
        if shuffles:
            order = shards.permutation(count, tf.stack([tf.cast(seed, tf.int64), 0]))

        def gather(numbers: tf.Tensor) -> tuple[Any, ...]:
            return tuple(tf.nest.map_structure(lambda each: tf.gather(each, numbers), parts))

        # Many at a time: a call for each example would take longer than most models.
        return tf.data.Dataset.from_tensor_slices(order).batch(_GATHERED).map(gather).unbatch()

    return rows


def _tensor(values: Any, path: str) -> tf.Tensor:
    """Return one leaf as a tensor (examples, …). Raises DataError with `path`."""
    try:
        tensor = tf.convert_to_tensor(values)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: its rows have different lengths or types; pad them to one shape ({error})"
        ) from error
    if not tensor.shape.rank:
        raise DataError(f"{path} is a single {tensor.dtype.name}; expected one value per example")
    # TensorFlow 2.19 crashes where it takes batches of nothing apart.
    if 0 in tensor.shape[1:]:
        raise DataError(f"{path} has the shape {tuple(tensor.shape)}, and so no value; omit it")
    if tensor.dtype.is_floating:
        bad = ~tf.math.is_finite(tf.cast(tensor, tf.float32))
        rows = tf.where(tf.reduce_any(tf.reshape(bad, (len(tensor), -1)), axis=1))[:, 0]
        if len(rows):
            raise DataError(
                f"{path} has NaN or infinity in {len(rows)} examples, first in number "
                f"{int(rows[0])}; replace or leave them out"
            )
    return tensor


def _batches(given: Any, path: str) -> tf.data.Dataset:
    """Return the batches of a PyDataset, which are read in Python."""
    count = given.num_batches
    if count is None:
        raise DataError(f"{path} never ends; give it a length, because it is read in epochs")
    first = tf.nest.map_structure(tf.convert_to_tensor, given[0])
    signature = tf.nest.map_structure(
        lambda each: tf.TensorSpec((None, *each.shape[1:]), each.dtype), first
    )

    def batches() -> Iterator[Any]:
        return (given[number] for number in range(count))

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _of_dataset(given: tf.data.Dataset, path: str) -> _Rows:
    """Return the examples of a Dataset, made from its graph in each epoch.

    An iterator's state would be saved with its buffers and for one number of hosts only. A graph
    that is given its seeds is exact on any: it is read from the start of the epoch, and what was
    seen is skipped. So each shuffle() draws from the epoch's seed, whatever seed it had. One with
    reshuffle_each_iteration=False keeps its own: take() and skip() may split what it yields.
    """
    parts = given.element_spec
    if isinstance(parts, tuple) and tf.type_spec_from_value(None) in parts[1:2]:
        raise DataError(f"{path} {functions.NO_TARGETS}")
    try:
        # A Dataset can't be sent from the machine that it was made on.
        with tf.device(given._variant_tensor.device):
            count = given.cardinality().numpy()
            graph = tf.compat.v1.GraphDef.FromString(given._as_serialized_graph().numpy())
    except tf.errors.OpError as error:
        raise DataError(
            f"{path}: its state can't be written as a graph, so a training could not resume "
            f"({error.message.splitlines()[0]}); pass a file with a function dataset(split, "
            "context)"
        ) from error
    if count == tf.data.INFINITE_CARDINALITY:
        raise DataError(f"{path} never ends; remove repeat(), because it is read in epochs")
    end = next((node for node in graph.node if node.op == "_Retval"), None)
    if end is None:
        raise DataError(
            f"{path}: its graph is larger than 2 GB, which no graph may be, because "
            "from_tensor_slices() puts its arrays in there; pass the arrays themselves"
        )
    whole, seeds = f"{_source(end.input[0])}:0", _seeds(graph, path)
    batched = _is_batched(given.element_spec, graph, end)
    graph.node.remove(end)
    for node in graph.node:
        if node.op in _WITHOUT_STATE:
            node.op = _WITHOUT_STATE[node.op]
            del node.input[-1]
    _register_functions(graph)

    def in_graph(seed: tf.Tensor) -> tf.data.Dataset:
        drawn = {f"{name}:0": seed + at for at, name in enumerate(seeds)}
        (variant,) = tf.graph_util.import_graph_def(
            graph, input_map=drawn, return_elements=[whole], name=""
        )
        # `given` holds what its Python functions are, as long as this function lives.
        remade = dataset_ops._VariantDataset(variant, given.element_spec)
        return remade.unbatch() if batched else remade

    remake = tf.function(in_graph, autograph=False)

    def rows(_: bool, seed: Any) -> tf.data.Dataset:
        make = remake if tf.executing_eagerly() else in_graph
        return make(tf.cast(seed, tf.int64))

    return rows


def _register_functions(graph: Any) -> None:
    """Move the functions of `graph` to where TensorFlow, and each worker, finds them.

    A worker lacks those that are older than the connection, and refuses another form of one.
    """
    number = next(_numbers)
    names = {one.signature.name: f"{one.signature.name}_{number}" for one in graph.library.function}
    for nodes in (graph.node, *(one.node_def for one in graph.library.function)):
        for attribute in (each for node in nodes for each in node.attr.values()):
            for called in (attribute.func, *attribute.list.func):
                if called.name in names:
                    called.name = names[called.name]
    for one in graph.library.function:
        one.signature.name = names[one.signature.name]
        eager.context().add_function_def(one)
    graph.ClearField("library")


def _source(name: str) -> str:
    """Return the name of the node that makes the input `name`."""
    return name.partition(":")[0]


def _seeds(graph: Any, path: str) -> list[str]:
    """Return the names of the seeds to draw in each epoch.

    Raises:
        DataError: Another start of the training would find another order.
    """
    nodes, seeds = {node.name: node for node in graph.node}, list[str]()

    def is_given(name: str) -> bool:
        """Return whether a seed is not 0, or the name of a file not empty."""
        node = nodes[_source(name)]
        return node.op != "Const" or bool(tf.make_ndarray(node.attr["value"].tensor).item())

    # A node comes after its inputs.
    for node in graph.node:
        if node.op == _SHUFFLE:
            pair = node.input[2:4]
            if node.attr["reshuffle_each_iteration"].b:
                seeds += map(_source, pair)
            elif not any(map(is_given, pair)):
                raise DataError(
                    f"{path}: shuffle(…, reshuffle_each_iteration=False) has no seed, so another "
                    "start would find another order; pass it a seed"
                )
        if node.op == _CACHE and seeds and is_given(node.input[1]):
            raise DataError(
                f"{path}: cache(FILE) after shuffle() keeps one epoch's order on one machine, "
                "where another start may not find it; call it before shuffle()"
            )
    return seeds


def _is_batched(spec: Any, graph: Any, end: Any) -> bool:
    """Return whether elements of `spec` are batches, which Keras would take.

    Their first axis has no size, or what made the rows last on the way to `end` is a batch().
    """
    if {each.shape[0] if each.shape.rank else 0 for each in tf.nest.flatten(spec)} == {None}:
        return True
    nodes = {node.name: node for node in graph.node}
    while end is not None and end.input and not _REMAKES.search(end.op):
        end = nodes.get(_source(end.input[0]))
    return end is not None and "BatchDataset" in end.op
