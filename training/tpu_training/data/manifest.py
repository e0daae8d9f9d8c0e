"""The manifest that stands beside a data set's TFRecord files and describes them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_training.errors import DataError, InputError
from tpu_training.models.spec import DataSpec

FILE_NAME = "manifest.json"
# How an example keeps its features: unsigned bytes of one shape, JPEG or PNG files, token ids.
RAW, ENCODED, TOKENS = "raw", "encoded", "tokens"
_DTYPES = {RAW: "uint8", ENCODED: "uint8", TOKENS: "int32"}
_KINDS = {RAW: "image", ENCODED: "image", TOKENS: "text"}
_FORMAT = 2
# Written up to version 0.1.0: raw images only, their shape as `image_shape`.
_OLD_FORMAT = 1
_CURE = "write it again with `tpu-training data convert`"


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

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Manifest:
    """A data set of images or texts with one label each.

    `spec` describes the examples as they are stored; height and width are 0 where the images have
    different sizes. `class_names` is empty or has a name for each class. `vocabulary` is the name
    of the vocabulary's file beside the manifest, for texts.
    """

    name: str
    spec: DataSpec
    encoding: str
    splits: Mapping[str, Split]
    class_names: tuple[str, ...] = ()
    vocabulary: str = ""

    def split(self, name: str) -> Split:
        """Return the split called `name`; DataError when there is none."""
        if name not in self.splits:
            raise DataError(
                f"the data set {self.name} has no split {name}, only {', '.join(self.splits)}"
            )
        return self.splits[name]

    def input_spec(self, image_size: int) -> DataSpec:
        """What a model gets when images are brought to `image_size`; 0 leaves them as they are.

        Raises InputError when they have different sizes and none is given.
        """
        if self.spec.kind != "image":
            return self.spec
        if image_size:
            shape = (image_size, image_size, self.spec.shape[2])
            return dataclasses.replace(self.spec, shape=shape)
        if not all(self.spec.shape):
            raise InputError(
                f"--image_size=0: the images of the data set {self.name} have different sizes; "
                "say to which one they are to be brought, such as --image_size=224"
            )
        return self.spec

    def to_json(self) -> str:
        """The manifest file's content."""
        content = {
            "format": _FORMAT,
            "name": self.name,
            "encoding": self.encoding,
            "shape": self.spec.shape,
            "classes": self.spec.classes,
            "class_names": self.class_names,
            "vocabulary": self.vocabulary,
            "vocabulary_size": self.spec.vocabulary,
            "splits": {name: dataclasses.asdict(split) for name, split in self.splits.items()},
        }
        return json.dumps(content, indent=2) + "\n"


def stored_spec(
    encoding: str, shape: tuple[int, ...], classes: int, vocabulary_size: int = 0
) -> DataSpec:
    """The spec of examples that are kept as `encoding` says."""
    return DataSpec(_KINDS[encoding], shape, _DTYPES[encoding], classes, vocabulary_size)


def parse_manifest(text: str, path: str) -> Manifest:
    """Read a manifest file's content; DataError names `path` and the field that is wrong."""
    try:
        manifest = _parse(json.loads(text), path)
    except KeyError as error:
        raise DataError(f"{path} has no field {error}; {_CURE}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no manifest of a data set ({error}); {_CURE}") from error
    for name, split in manifest.splits.items():
        if split.examples != sum(file.examples for file in split.files) or not split.examples:
            raise DataError(
                f"{path}: split {name} announces {split.examples} examples, its files "
                f"{sum(file.examples for file in split.files)}; {_CURE}"
            )
    return manifest


def _parse(content: Mapping[str, Any], path: str) -> Manifest:
    if content["format"] not in (_FORMAT, _OLD_FORMAT):
        raise DataError(f"{path} has format {content['format']}, expected {_FORMAT}; {_CURE}")
    old = content["format"] == _OLD_FORMAT
    encoding = RAW if old else content["encoding"]
    if encoding not in _KINDS:
        raise ValueError(f"encoding {encoding}, expected one of {', '.join(_KINDS)}")
    shape = tuple(int(size) for size in content["image_shape" if old else "shape"])
    if len(shape) != (1 if encoding == TOKENS else 3):
        raise ValueError(f"shape {shape} of {_KINDS[encoding]}s")
    vocabulary_size = 0 if old else int(content["vocabulary_size"])
    return Manifest(
        name=str(content["name"]),
        spec=stored_spec(encoding, shape, int(content["classes"]), vocabulary_size),
        encoding=encoding,
        splits={name: _parse_split(split) for name, split in content["splits"].items()},
        class_names=tuple(map(str, content.get("class_names", ()))),
        vocabulary=str(content.get("vocabulary", "")),
    )


def _parse_split(content: Mapping[str, Any]) -> Split:
    files = tuple(
        DataFile(str(f["name"]), int(f["examples"]), int(f["bytes"]), str(f["sha256"]))
        for f in content["files"]
    )
    return Split(int(content["examples"]), files)
