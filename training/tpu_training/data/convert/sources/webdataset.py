"""Read WebDataset shards: tar files in which the parts of an example share a name.

https://github.com/webdataset/webdataset#the-webdataset-format
"""

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tpu_training.data.convert.source import (
    IMAGE,
    TEXT,
    Examples,
    Feature,
    Options,
    Source,
    number_labels,
    orders,
    pick,
)
from tpu_training.data.convert.sources.split_files import find_splits, holds
from tpu_training.errors import DataError

_SUFFIX = ".tar"
_IMAGES, _TEXTS = ("jpg", "jpeg", "png"), ("txt", "text")
# A class as text, or fields.
_LABEL, _FIELDS = "cls", "json"
_USUAL_FIELD = "label"


@dataclass(frozen=True)
class _Sample:
    """An example: its shard, its name there, and the place of each part by extension."""

    shard: Path
    name: str
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.shard} {self.name}"

    def read(self, extension: str) -> bytes:
        offset, size = self.parts[extension]
        with self.shard.open("rb") as file:
            file.seek(offset)
            return file.read(size)


def matches(path: Path) -> bool:
    """Return whether `path` is a tar file or a folder with some."""
    return holds(path, _SUFFIX)


def load(path: Path, options: Options) -> Source:
    """Read shards such as train-0000.tar and test-0000.tar, or split all examples.

    Each example has an image (jpg, png) or a text (txt), and its class as text in a `cls` or as a
    field of a `json`. Nothing is unpacked: an index of the parts is made first.
    """
    samples = {
        split: [sample for file in files for sample in _samples(file)]
        for split, files in find_splits(path, _SUFFIX).items()
    }
    if empty := [split for split, found in samples.items() if not found]:
        raise DataError(f"{path}: the split {empty[0]} is empty")
    extension = options.feature or _feature(samples["train"][0])
    for sample in (sample for found in samples.values() for sample in found):
        if extension not in sample.parts:
            raise DataError(f"{sample}: has no {extension}, only {', '.join(sample.parts)}")
    written = {
        split: [_label(sample, options.label) for sample in found]
        for split, found in samples.items()
    }
    labels = number_labels(written, lambda split, number: str(samples[split][number]))
    counts = {split: len(found) for split, found in samples.items()}
    is_text = extension in _TEXTS
    splits: dict[str, Examples] = {}
    for split, (source, order) in orders(counts, options, str(path)).items():
        found = samples[source]
        read = _reader(found, extension, is_text)
        splits[split] = pick(order, _place(found), read, labels.splits[source])
    name = options.name or path.resolve().stem
    return Source(name, TEXT if is_text else IMAGE, labels.classes, splits, labels.names)


def _samples(shard: Path) -> Iterator[_Sample]:
    """Yield a shard's examples; their parts follow each other."""
    sample = _Sample(shard, "")
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                folder, _, file = member.name.rpartition("/")
                stem, dot, extension = file.partition(".")
                if not member.isfile() or not (stem and dot):
                    continue
                name = f"{folder}/{stem}" if folder else stem
                if name != sample.name:
                    if sample.parts:
                        yield sample
                    sample = _Sample(shard, name)
                sample.parts[extension.lower()] = (member.offset_data, member.size)
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{shard}: can't be read as an uncompressed tar file ({error})") from error
    if sample.parts:
        yield sample


def _feature(sample: _Sample) -> str:
    found = [extension for extension in (*_IMAGES, *_TEXTS) if extension in sample.parts]
    if len(found) != 1:
        raise DataError(
            f"{sample}: which of {', '.join(sample.parts)} is the image or text? Name it with "
            "--feature"
        )
    return found[0]


def _label(sample: _Sample, given: str | None) -> str:
    """Return the class as it is written."""
    extension = given if given in sample.parts else _LABEL
    if extension in sample.parts and given in (None, extension):
        return sample.read(extension).decode("utf-8", "replace").strip()
    name = given or _USUAL_FIELD
    try:
        return str(json.loads(sample.read(_FIELDS))[name])
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{sample}: has neither a class in a {_LABEL} nor a field {name} in a {_FIELDS}; name "
            "the one or the other with --label"
        ) from error


def _reader(samples: list[_Sample], extension: str, is_text: bool) -> Callable[[int], Feature]:
    def read(number: int) -> Feature:
        content = samples[number].read(extension)
        return content.decode("utf-8", "replace") if is_text else content

    return read


def _place(samples: list[_Sample]) -> Callable[[int], str]:
    return lambda number: str(samples[number])
