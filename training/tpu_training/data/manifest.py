"""The manifest: a JSON file next to a dataset's TFRecord files that describes them."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

from tpu_core import records
from tpu_training.errors import DataError, InputError
from tpu_training.models.params import Params
from tpu_training.models.spec import CLASS, DTYPES, SEVERAL, TARGETS, DataSpec

FILE_NAME = "manifest.json"
# What a conversion keeps in a bucket before its manifest: a manifest of all files, of which those
# to come have no bytes and, as SHA-256, that of the first records; and, as two numbers of eight
# digits, how many training files are there and how often the conversion has said that it is alive.
PLAN, PROGRESS = "conversion.json", "conversion-progress"
DIGITS = 8
# How features are stored: unsigned bytes of one shape, JPEG or PNG files, token ids, and arrays of
# any other shape and type, or several by name.
RAW, ENCODED, TOKENS, ARRAY = "raw", "encoded", "tokens", "array"
# The names of targets in a tf.train.Example: of a class, and of everything else. Each of several
# arrays has its own: targets/NAME.
LABEL, TARGETS_FIELD, WEIGHT = "label", "targets", "weight"
# What a tf.train.Example calls features.
FEATURES = {RAW: "image", ENCODED: "image", TOKENS: "tokens", ARRAY: "features"}
# What the content of an image file begins with.
MAGICS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
# The byte of a pixel in a mask that is not counted, as in PASCAL VOC's.
NO_CLASS = 255
_DTYPES = {RAW: "uint8", ENCODED: "uint8", TOKENS: "int32"}
_KINDS = {RAW: "image", ENCODED: "image", TOKENS: "text"}
# Ids below this are stored in two bytes, others in four.
_SHORT = 1 << 16
SPLITS = TRAIN, TEST, VALIDATION = "train", "test", "validation"
# What a source or --data begins with that names a dataset of TensorFlow Datasets, or of the Hub.
BY_NAME = TFDS, HUB = "tfds:", "hf:"
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

    @property
    def finished(self) -> int:
        """The number of files that are there while the others are still written."""
        return sum(1 for file in self.files if file.bytes)


@dataclass(frozen=True)
class Manifest:
    """A dataset of images, texts or arrays with a class or other targets each.

    Attributes:
        spec: The examples as stored; height and width are 0 if the images differ in size.
        class_names: A name for each class, label or number; or empty.
        vocabulary: The name of the vocabulary file next to the manifest, for texts.
        weighted: Whether each example has a weight.
    """

    name: str
    spec: DataSpec
    encoding: str
    splits: dict[str, Split]
    class_names: tuple[str, ...] = ()
    vocabulary: str = ""
    weighted: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """The number of examples in each split."""
        return {name: split.examples for name, split in self.splits.items()}

    def split(self, name: str) -> Split:
        """Return the split called `name`. Raises DataError if there is none."""
        if name not in self.splits:
            raise DataError(
                f"the dataset {self.name} has no split {name}, only {', '.join(self.splits)}"
            )
        return self.splits[name]

    def is_of(self, other: "Manifest") -> bool:
        """Return whether both are of one conversion, as far as files tell that neither has yet."""
        ours, theirs = self.split(TRAIN), other.split(TRAIN)
        there = max(ours.finished, theirs.finished)
        heads = (dataclasses.replace(each, splits={}) for each in (self, other))
        return ours.files[there:] == theirs.files[there:] and next(heads) == next(heads)

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

    def steps(self, params: Params) -> int:
        """Return the number of steps of a training: whole batches in all epochs, at least 1.

        Raises:
            InputError: It is said twice, or in tokens of what are no texts.
        """
        batch = params.global_batch_size
        steps = params.epochs * self.split("train").examples / batch
        if params.tokens:
            if params.steps or self.spec.kind != "text":
                why = (
                    f"--steps={params.steps} says it, too; omit one of the two"
                    if params.steps
                    else f"the dataset {self.name} has no texts; use --steps or --epochs"
                )
                raise InputError(f"--tokens={params.tokens:g}: {why}")
            steps = params.tokens / (batch * self.spec.shape[0])
        steps = max(1, params.steps or int(steps))
        return min(steps, params.limit_batches or steps)

    def to_json(self) -> str:
        """Return the content of the manifest file."""
        # Not records.dump, which sorts: people see the splits in this order.
        return json.dumps(records.stamped(dataclasses.asdict(self)), indent=1) + "\n"


def no_manifest(directory: str) -> DataError:
    """Return the error for a `directory` that holds no dataset."""
    if directory.endswith((".py", ".parquet", ".tar")) or directory.startswith(BY_NAME):
        return DataError(
            f"--data={directory}: must be converted: run `tpu-training data convert "
            f"--source={directory} --output=DIRECTORY`, and pass that directory to the training"
        )
    return DataError(
        f"--data={directory}: contains no {FILE_NAME}; convert the data with `tpu-training data "
        "convert`, and copy it there; names of libraries begin with tfds: or hf:, as in "
        "hf:OWNER/NAME"
    )


def token_dtype(vocabulary: int) -> str:
    """Return the type in which the ids of a vocabulary are stored."""
    return "uint16" if vocabulary <= _SHORT else "int32"


def stored_spec(
    encoding: str,
    shape: tuple[int, ...],
    classes: int,
    vocabulary_size: int = 0,
    targets: str = CLASS,
    start: int = -1,
    end: int = -1,
    padding: int = 0,
) -> DataSpec:
    """Return the spec of examples stored in `encoding`."""
    kinds = (_KINDS[encoding], shape, _DTYPES[encoding])
    texts = (classes, vocabulary_size, targets)
    return DataSpec(*kinds, *texts, start=start, end=end, padding=padding)


def parse_manifest(text: str, path: str) -> Manifest:
    """Parse a manifest file's content.

    Raises:
        DataError: A field is wrong; the message names it and `path`.
    """
    try:
        manifest = records.load(Manifest, text)
    except records.Unreadable as error:
        raise DataError(f"{path} is not a dataset's manifest: {error}; {_CURE}") from error
    if problem := next(_problems(manifest), ""):
        raise DataError(f"{path}: {problem}; {_CURE}")
    return manifest


def _problems(manifest: Manifest) -> Iterator[str]:
    """Yield what does not fit together in a manifest."""
    encoding, spec = manifest.encoding, manifest.spec
    if encoding not in FEATURES:
        yield f"encoding is {encoding}, expected one of {', '.join(FEATURES)}"
        return
    if spec.targets not in (*TARGETS, SEVERAL):
        yield f"spec.targets is {spec.targets}, expected one of {', '.join((*TARGETS, SEVERAL))}"
    if not _is_stored(encoding, spec):
        yield f"spec is {spec}, which {encoding} does not store"
    names = len(manifest.class_names)
    if spec.classes < 0 or (names and names != spec.classes):
        yield f"spec.classes is {spec.classes}, and class_names has {names}"
    if "/" in manifest.vocabulary:
        yield f"vocabulary is {manifest.vocabulary}, expected a file's name"
    for name, split in manifest.splits.items():
        found = sum(file.examples for file in split.files)
        if split.examples != found or not found:
            yield f"split {name} announces {split.examples} examples, but its files {found}"


def _is_stored(encoding: str, spec: DataSpec) -> bool:
    """Return whether a spec is one that `encoding` stores."""
    leaves = [*spec.inputs, *spec.several]
    if encoding == ARRAY and not spec.inputs:
        leaves.append(("", spec.shape, spec.dtype))
    if encoding == ARRAY:
        plain = DataSpec("array", spec.shape, spec.dtype, spec.classes, targets=spec.targets)
        one = spec == dataclasses.replace(plain, inputs=spec.inputs, several=spec.several)
    else:
        texts = (spec.vocabulary, spec.targets, spec.start, spec.end, spec.padding)
        stored = stored_spec(encoding, spec.shape, spec.classes, *texts)
        one = spec == dataclasses.replace(stored, several=spec.several)
        one = one and len(spec.shape) == (1 if encoding == TOKENS else 3)
        one = one and spec.start != spec.padding
    known = all(dtype in DTYPES and all(n > 0 for n in shape) for _, shape, dtype in leaves)
    return one and known and (spec.targets == SEVERAL) == bool(spec.several)
