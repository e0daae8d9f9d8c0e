"""Open a dataset in a directory or bucket, or that of a user's function, and check it."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data import function as functions
from tpu_training.data import manifest as manifests
from tpu_training.data.shards import Shards
from tpu_training.errors import DataError, InputError


@dataclass(frozen=True)
class DataSet:
    """A complete dataset in `directory`, a path or gs:// URL.

    Attributes:
        held: The numbers of the records in each training file that are held out; the manifest
            counts them as the split `validation`, of the same files.
        function: The user's function that gives the examples, which then are in no files.
    """

    directory: str
    manifest: manifests.Manifest
    held: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    function: functions.LiveFunction | None = None

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
        )


def stored_files(data: DataSet) -> Iterator[manifests.DataFile]:
    """Yield each file once, with the number of all its records, of whichever split."""
    counts: dict[str, manifests.DataFile] = {}
    for split in data.manifest.splits.values():
        for file in split.files:
            before = counts[file.name].examples if file.name in counts else 0
            counts[file.name] = dataclasses.replace(file, examples=before + file.examples)
    yield from counts.values()


def open_data(directory: str) -> DataSet:
    """Read the manifest in `directory` and check that every file exists with its size.

    Raises:
        DataError: With every missing file and every wrong size.
    """
    directory = directory.rstrip("/")
    path = f"{directory}/{manifests.FILE_NAME}"
    text = files.read_text(path)
    if text is None:
        raise manifests.no_manifest(directory)
    data = DataSet(directory, manifests.parse_manifest(text, path))
    # Sizes find an interrupted copy in one request; checksums would read the whole dataset.
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
    path = f"{data.directory}/{manifests.FILE_NAME}"
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


def open_given(data: str, seed: int) -> DataSet:
    """Return the dataset that --data names: of a function in a file, or in a directory."""
    return open_function(data, seed) if manifests.is_function(data) else open_data(data)


def open_function(path: str, seed: int) -> DataSet:
    """Return the dataset of the function in the file `path`, each split as if it were one file.

    Raises:
        InputError: The function fails, or its examples can't be trained on; with FILE:LINE.
    """
    name = path.rpartition("/")[2].removesuffix(".py")
    return of_function(functions.load_function(path, "data"), name, seed, path)


def of_function(
    function: functions.DataFunction, name: str, seed: int, directory: str = ""
) -> DataSet:
    """Return the dataset called `name` of a data function. Raises as `open_function`."""
    live = functions.look(function, functions.seed_of(seed, 0))
    splits = {
        split: manifests.Split(count, (manifests.DataFile(split, count, 0, ""),))
        for split, count in live.examples.items()
    }
    names = live.function.class_names
    manifest = manifests.Manifest(name, live.spec, live.encoding, splits, names)
    return DataSet(directory or name, manifest, function=live)
