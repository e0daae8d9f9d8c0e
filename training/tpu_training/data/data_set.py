"""Open a data set in a directory or bucket and check that it is complete and readable."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data.input.shards import Readable, Shards
from tpu_training.data.manifest import FILE_NAME, DataFile, Manifest, parse_manifest
from tpu_training.errors import DataError, InputError


@dataclass(frozen=True)
class DataSet:
    """A complete data set in `directory`, a path or gs:// URL.

    Attributes:
        damaged: The readable records of each file whose corrupt ones are skipped; the manifest
            counts only the readable ones.
        left_out: The number of skipped records in all files.
    """

    directory: str
    manifest: Manifest
    damaged: Mapping[str, Readable] = field(default_factory=dict)
    left_out: int = 0

    def paths(self, split: str) -> list[str]:
        """Return the paths of the files of `split`."""
        return [f"{self.directory}/{file.name}" for file in self.manifest.split(split).files]

    def shards(self, split: str) -> Shards:
        """Return the files of `split` for the input pipeline."""
        content = self.manifest.split(split)
        return Shards(
            tuple(self.paths(split)),
            tuple(file.examples for file in content.files),
            content.bytes,
            {f"{self.directory}/{name}": places for name, places in self.damaged.items()},
        )


def open_data(directory: str) -> DataSet:
    """Read the manifest in `directory` and check that every file exists with its size.

    Raises:
        DataError: With every missing file and every wrong size.
    """
    directory = directory.rstrip("/")
    path = f"{directory}/{FILE_NAME}"
    text = files.read_text(path)
    if text is None:
        raise DataError(
            f"--data={directory}: contains no {FILE_NAME}; write the data set with "
            "`tpu-training data convert` and copy it there"
        )
    data = DataSet(directory, parse_manifest(text, path))
    problems = []
    for split in data.manifest.splits.values():
        for file in split.files:
            size = files.size(f"{directory}/{file.name}")
            if size is None:
                problems.append(f"{file.name} is missing")
            elif size != file.bytes:
                problems.append(f"{file.name} has {size} bytes, expected {file.bytes}")
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


def corrupt_files(data: DataSet) -> list[DataFile]:
    """Return the files whose SHA-256 is not the manifest's; reads all of them."""
    return [
        file
        for split in data.manifest.splits.values()
        for file in split.files
        if files.sha256(f"{data.directory}/{file.name}") != file.sha256
    ]
