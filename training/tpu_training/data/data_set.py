"""A data set as it is found in a directory or bucket: complete, and readable where it is used."""

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
    """A data set in `directory` (a path or gs:// URL) that was found complete.

    `damaged` tells, for files with corrupt records that are to be left out, where the others are;
    the manifest counts only those. `left_out` are the records that are left out, in all.
    """

    directory: str
    manifest: Manifest
    damaged: Mapping[str, Readable] = field(default_factory=dict)
    left_out: int = 0

    def paths(self, split: str) -> list[str]:
        """The paths of the files of `split`."""
        return [f"{self.directory}/{file.name}" for file in self.manifest.split(split).files]

    def shards(self, split: str) -> Shards:
        """The files of `split` for the input pipeline."""
        content = self.manifest.split(split)
        return Shards(
            tuple(self.paths(split)),
            tuple(file.examples for file in content.files),
            content.bytes,
            {f"{self.directory}/{name}": places for name, places in self.damaged.items()},
        )


def open_data(directory: str) -> DataSet:
    """Read the manifest in `directory` and check that every file is there with its size.

    Raises DataError that lists all files that are missing or of another size.
    """
    directory = directory.rstrip("/")
    path = f"{directory}/{FILE_NAME}"
    text = files.read_text(path)
    if text is None:
        raise DataError(
            f"--data={directory}: there is no {FILE_NAME} in it; write the data set with "
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
    """Raise InputError when a host of the cluster can't read what this process can.

    A TPU's host reads buckets only ("File system scheme '[local]' not implemented"), and any other
    machine has files of its own.
    """
    path = f"{data.directory}/{FILE_NAME}"
    for host in cluster.worker_hosts():
        try:
            with tf.device(host):
                tf.io.read_file(path).numpy()
        except (tf.errors.NotFoundError, tf.errors.UnimplementedError) as error:
            raise InputError(
                f"--data={data.directory}: is on this machine, but the worker at "
                f"{cluster.endpoint} that trains can't read it there; copy it to a bucket that "
                "both can read, and give its gs:// URL"
            ) from error


def corrupt_files(data: DataSet) -> list[DataFile]:
    """Return the files whose SHA-256 is not the manifest's; reads all of them."""
    return [
        file
        for split in data.manifest.splits.values()
        for file in split.files
        if files.sha256(f"{data.directory}/{file.name}") != file.sha256
    ]
