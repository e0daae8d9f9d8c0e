"""The manifest that stands beside a data set's TFRecord files and describes them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.data.spec import DataSpec
from training.errors import DataError

FILE_NAME = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True)
class DataFile:
    """One TFRecord file: its name beside the manifest, and what it must contain."""

    name: str
    examples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """The files of one part of the data set: `train` or `test`."""

    examples: int
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Manifest:
    """A data set of images with one label each.

    `image_shape` is (height, width, channels) of unsigned bytes; labels are 0 to `classes` - 1.
    """

    name: str
    image_shape: tuple[int, int, int]
    classes: int
    splits: Mapping[str, Split]

    @property
    def spec(self) -> DataSpec:
        """What a model has to know of the data set."""
        return DataSpec("image", self.image_shape, "uint8", self.classes)

    def split(self, name: str) -> Split:
        """Return the split called `name`; DataError when there is none."""
        if name not in self.splits:
            raise DataError(
                f"the data set {self.name} has no split {name}, only {', '.join(self.splits)}"
            )
        return self.splits[name]

    def to_json(self) -> str:
        """The manifest file's content."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=2) + "\n"


def parse_manifest(text: str, path: str) -> Manifest:
    """Read a manifest file's content; DataError names `path` and the field that is wrong."""
    cure = "write it again with `python -m training data convert`"
    try:
        content = json.loads(text)
        if content["format"] != _FORMAT:
            raise DataError(f"{path} has format {content['format']}, expected {_FORMAT}; {cure}")
        height, width, channels = content["image_shape"]
        manifest = Manifest(
            name=str(content["name"]),
            image_shape=(int(height), int(width), int(channels)),
            classes=int(content["classes"]),
            splits={name: _parse_split(split) for name, split in content["splits"].items()},
        )
    except KeyError as error:
        raise DataError(f"{path} has no field {error}; {cure}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no manifest of a data set ({error}); {cure}") from error
    for name, split in manifest.splits.items():
        if split.examples != sum(file.examples for file in split.files) or not split.examples:
            raise DataError(
                f"{path}: split {name} announces {split.examples} examples, its files "
                f"{sum(file.examples for file in split.files)}; {cure}"
            )
    return manifest


def _parse_split(content: Mapping[str, Any]) -> Split:
    files = tuple(
        DataFile(str(f["name"]), int(f["examples"]), int(f["bytes"]), str(f["sha256"]))
        for f in content["files"]
    )
    return Split(int(content["examples"]), files)
