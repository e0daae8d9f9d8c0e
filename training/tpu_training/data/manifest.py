"""The manifest: a JSON file next to a dataset's TFRecord files that describes them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpu_training.errors import DataError, InputError
from tpu_training.models.spec import CLASS, TARGETS, DataSpec

FILE_NAME = "manifest.json"
# How features are stored: unsigned bytes of one shape, JPEG or PNG files, token ids. ARRAY is
# anything else, which no file stores: it comes from a function or from Python.
RAW, ENCODED, TOKENS, ARRAY = "raw", "encoded", "tokens", "array"
# The names of targets in a tf.train.Example: of a class, and of everything else.
LABEL, TARGETS_FIELD = "label", "targets"
# What the content of an image file begins with.
MAGICS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
# The byte of a pixel in a mask that is not counted, as in PASCAL VOC's.
NO_CLASS = 255
_DTYPES = {RAW: "uint8", ENCODED: "uint8", TOKENS: "int32"}
_KINDS = {RAW: "image", ENCODED: "image", TOKENS: "text"}
_FORMAT = 3
SPLITS = TRAIN, TEST, VALIDATION = "train", "test", "validation"
# What a source or --data begins with that names a dataset of TensorFlow Datasets.
BY_NAME = "tfds:"
_CURE = "convert it again with `tpu-training data convert`"


def is_function(data: str) -> bool:
    """Return whether --data names a file with a data function instead of a manifest's folder."""
    return data.endswith(".py")


@dataclass(frozen=True)
class DataFile:
    """One TFRecord file: its name in the manifest's directory, and its expected contents."""

    name: str
    examples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """The files of one part of the dataset: `train`, `test` or `validation`."""

    examples: int
    files: tuple[DataFile, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Manifest:
    """A dataset of images or texts with a class or other targets each.

    Attributes:
        spec: The examples as stored; height and width are 0 if the images differ in size.
        class_names: A name for each class, label or number; or empty.
        vocabulary: The name of the vocabulary file next to the manifest, for texts.
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
                f"the dataset {self.name} has no split {name}, only {', '.join(self.splits)}"
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
                f"--image_size=0: the images of the dataset {self.name} have different sizes; "
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
            "targets": self.spec.targets,
            "classes": self.spec.classes,
            "class_names": self.class_names,
            "vocabulary": self.vocabulary,
            "vocabulary_size": self.spec.vocabulary,
            "splits": {name: dataclasses.asdict(split) for name, split in self.splits.items()},
        }
        return json.dumps(content, indent=2) + "\n"


def no_manifest(directory: str) -> DataError:
    """Return the error for a `directory` that holds no dataset."""
    if directory.endswith((".py", ".parquet", ".tar")) or directory.startswith(BY_NAME):
        return DataError(
            f"--data={directory}: must be converted: run `tpu-training data convert "
            f"--source={directory} --output=DIRECTORY`, and pass that directory to the training"
        )
    return DataError(
        f"--data={directory}: contains no {FILE_NAME}; convert the data with `tpu-training data "
        "convert`, and copy it there"
    )


def stored_spec(
    encoding: str,
    shape: tuple[int, ...],
    classes: int,
    vocabulary_size: int = 0,
    targets: str = CLASS,
) -> DataSpec:
    """Return the spec of examples stored in `encoding`."""
    return DataSpec(_KINDS[encoding], shape, _DTYPES[encoding], classes, vocabulary_size, targets)


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
        raise DataError(f"{path} is not a dataset's manifest ({error}); {_CURE}") from error
    for name, split in manifest.splits.items():
        if split.examples != sum(file.examples for file in split.files) or not split.examples:
            raise DataError(
                f"{path}: split {name} announces {split.examples} examples, but its files "
                f"{sum(file.examples for file in split.files)}; {_CURE}"
            )
    return manifest


def _parse(content: Mapping[str, Any], path: str) -> Manifest:
    """Build the manifest of a file's content; the caller names the file in what this raises."""
    if content["format"] != _FORMAT:
        raise DataError(f"{path} has format {content['format']}, expected {_FORMAT}; {_CURE}")
    encoding = content["encoding"]
    if encoding not in _KINDS:
        raise ValueError(f"encoding {encoding}, expected one of {', '.join(_KINDS)}")
    shape = tuple(int(size) for size in content["shape"])
    if len(shape) != (1 if encoding == TOKENS else 3):
        raise ValueError(f"shape {shape} of {_KINDS[encoding]}s")
    targets = str(content["targets"])
    if targets not in TARGETS:
        raise ValueError(f"targets {targets}, expected one of {', '.join(TARGETS)}")
    return Manifest(
        name=str(content["name"]),
        spec=stored_spec(
            encoding, shape, int(content["classes"]), int(content["vocabulary_size"]), targets
        ),
        encoding=encoding,
        splits={
            name: Split(int(split["examples"]), tuple(map(_parse_file, split["files"])))
            for name, split in content["splits"].items()
        },
        class_names=tuple(map(str, content["class_names"])),
        vocabulary=str(content["vocabulary"]),
    )


def _parse_file(content: Mapping[str, Any]) -> DataFile:
    sizes = int(content["examples"]), int(content["bytes"])
    return DataFile(str(content["name"]), *sizes, str(content["sha256"]))
