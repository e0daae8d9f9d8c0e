"""The manifest, which describes a data set's TFRecord files and lies beside them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_training.errors import DataError, InputError
from tpu_training.models.spec import DataSpec

FILE_NAME = "manifest.json"
# How features are stored: unsigned bytes of one shape, JPEG or PNG files, token ids.
RAW, ENCODED, TOKENS = "raw", "encoded", "tokens"
_DTYPES = {RAW: "uint8", ENCODED: "uint8", TOKENS: "int32"}
_KINDS = {RAW: "image", ENCODED: "image", TOKENS: "text"}
_FORMAT = 2
# An older format: raw images only, with their shape as `image_shape`.
_OLD_FORMAT = 1
_CURE = "write it again with `tpu-training data convert`"


@dataclass(frozen=True)
class DataFile:
    """One TFRecord file: its name in the manifest's directory, and its expected contents."""

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

    Attributes:
        spec: The examples as stored; height and width are 0 if the images differ in size.
        class_names: A name for each class, or empty.
        vocabulary: The name of the vocabulary file beside the manifest, for texts.
    """

    name: str
    spec: DataSpec
    encoding: str
    splits: Mapping[str, Split]
    class_names: tuple[str, ...] = ()
    vocabulary: str = ""

    def split(self, name: str) -> Split:
        """Return the split called `name`. Raises DataError if there is none."""
        if name not in self.splits:
            raise DataError(
                f"the data set {self.name} has no split {name}, only {', '.join(self.splits)}"
            )
        return self.splits[name]

    def input_spec(self, image_size: int) -> DataSpec:
        """Return the model's input after resizing images to `image_size`; 0 keeps their size.

        Raises:
            InputError: The images differ in size and `image_size` is 0.
        """
        if self.spec.kind != "image":
            return self.spec
        if image_size:
            shape = (image_size, image_size, self.spec.shape[2])
            return dataclasses.replace(self.spec, shape=shape)
        if not all(self.spec.shape):
            raise InputError(
                f"--image_size=0: the images of the data set {self.name} have different sizes; "
                "choose one to resize them to, such as --image_size=224"
            )
        return self.spec

    def to_json(self) -> str:
        """Return the content of the manifest file."""
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
    """Return the spec of examples stored in `encoding`."""
    return DataSpec(_KINDS[encoding], shape, _DTYPES[encoding], classes, vocabulary_size)


def parse_manifest(text: str, path: str) -> Manifest:
    """Parse a manifest file's content.

    Raises:
        DataError: A field is wrong; the message names it and `path`.
    """
    try:
        manifest = _parse(json.loads(text), path)
    except KeyError as error:
        raise DataError(f"{path} has no field {error}; {_CURE}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a data set's manifest ({error}); {_CURE}") from error
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
