"""Sources that are arrays: in memory, IDX files, masks, a text's characters, digits."""

import gzip
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpu_training.data import manifest, source
from tpu_training.errors import DataError, require
from tpu_training.models import spec as specs

Array = npt.NDArray[Any]
# Features, targets and, if they have some, weights of a split: arrays or lists of one length, or
# dictionaries of them; None for no targets.
Split = tuple[Any, ...]


def source_of_arrays(
    name: str, splits: Mapping[str, Split], class_names: Sequence[str]
) -> source.Source:
    """Return the dataset in `splits`, `train` and `test`; see tpu_training.write_data.

    Raises:
        DataError: Features or targets have a wrong shape or type; the message names the split.
    """
    from tpu_training.data import data_set, function  # They load TensorFlow.

    made = {split: _array(features) for split, (features, *_) in splits.items()}
    arrays = {split: array for split, array in made.items() if array is not None}
    texts = {split: array for split, array in arrays.items() if array.dtype.kind in "UO"}
    plain = {
        split: (np.arange(len(array)) if split in texts else array,)
        for split, array in arrays.items()
    }
    given = {split: (*plain.get(split, one[:1]), *one[1:]) for split, one in splits.items()}
    examples = data_set.given_function(given, class_names, shuffles=False)
    return function.source_of(examples, name, source.Options(), texts or None)


def fit_files(examples: Any) -> bool:
    """Return whether the `examples` of a split are arrays of bytes, token ids or texts."""
    if not (isinstance(examples, tuple) and len(examples) == 2):
        return False
    features, targets = map(_array, examples)
    if features is None or targets is None:
        return False
    # The look at examples goes by the same types: other whole numbers are arrays like any.
    images = features.dtype == np.uint8 and features.ndim in (3, 4)
    ids = features.dtype in (np.int32, np.int64) and features.ndim == 2
    return images or ids or (features.dtype.kind in "UO" and features.ndim == 1)


def _array(values: Any) -> Array | None:
    """Return an array; None of several, and of rows of different lengths, which are told later."""
    try:
        return None if isinstance(values, Mapping) else np.asarray(values)
    except ValueError:
        return None


# MNIST's IDX files, http://yann.lecun.com/exdb/mnist/: two zero bytes, the element type, the number
# of dimensions, each dimension as a big-endian 32-bit number, then the elements.
_PREFIXES, _CLASSES = {"train": "train", "test": "t10k"}, 10
_UNSIGNED_BYTE, _HEADER_BYTES = 0x08, 4
_GZIP_MAGIC = b"\x1f\x8b"


def is_idx(directory: Path) -> bool:
    """Return whether `directory` contains an IDX file."""
    return directory.is_dir() and any(directory.glob("*ubyte*"))


def load_idx(directory: Path, options: source.Options) -> source.Source:
    """Read all four files, with labels 0 to 9."""
    splits = {split: _load(directory, prefix) for split, prefix in _PREFIXES.items()}
    return source.Source(options.name or "mnist", source.IMAGE, _CLASSES, splits)


def _load(directory: Path, prefix: str) -> source.Examples:
    """Read the images of a split, with an axis of channels, and as many labels."""
    images_path = _find(directory, f"{prefix}-images", "idx3-ubyte")
    labels_path = _find(directory, f"{prefix}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1).astype(np.int64)
    if not len(images):
        raise DataError(f"{images_path}: contains no images")
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: {len(labels)} labels for the {len(images)} images of "
            f"{images_path.name}; the two files don't match"
        )
    source.check_labels({prefix: labels}, _CLASSES, str(labels_path))
    return source.pick(np.arange(len(labels)), str, images[..., np.newaxis].__getitem__, labels)


def _find(directory: Path, stem: str, kind: str) -> Path:
    """Find STEM-KIND or STEM.KIND, with or without .gz: mirrors name the files differently."""
    names = [f"{stem}{dot}{kind}{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise DataError(f"{directory}: contains neither {names[0]} nor {', '.join(names[1:])}")


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the array of unsigned bytes in `path`, which must have `dimensions` dimensions.

    Raises:
        DataError: The magic number or the length is wrong; the message names the file.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: can't be read ({error}); download it again") from error
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if content[:_HEADER_BYTES] != magic:
        raise DataError(
            f"{path}: magic number {content[:_HEADER_BYTES].hex() or 'missing'}, expected "
            f"{magic.hex()} (unsigned bytes in {dimensions} dimensions); check that it is the "
            "right file"
        )
    start = _HEADER_BYTES + 4 * dimensions
    shape = tuple(np.frombuffer(content[_HEADER_BYTES:start], dtype=">u4").astype(int).tolist())
    expected = start + math.prod(shape)
    # A header that is cut off has fewer dimensions.
    if len(shape) != dimensions or len(content) != expected:
        raise DataError(
            f"{path}: {len(content)} bytes, expected {expected} for the shape {shape} in its "
            "header; the file is incomplete or damaged; download it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


# A mask is a PNG whose grey level is the class; 255 is not counted, as in PASCAL VOC's.

_IMAGES, _MASKS = "images", "masks"


def is_masks(path: Path) -> bool:
    """Return whether `path` has the folders `images` and `masks`."""
    return (path / _IMAGES).is_dir() and (path / _MASKS).is_dir()


def load_masks(path: Path, options: source.Options) -> source.Source:
    """Read all pairs, which must have one size, and split them at random."""
    pictures = [file for file in sorted((path / _IMAGES).iterdir()) if file.is_file()]
    if not pictures:
        raise DataError(f"{path / _IMAGES}: contains no image")
    images: list[npt.NDArray[np.uint8]] = []
    masks: list[npt.NDArray[np.uint8]] = []
    for picture in pictures:
        masked = path / _MASKS / f"{picture.stem}.png"
        source.refuse_outside((picture, masked), path)
        image, mask = _read_picture(picture, colour=True), _read_picture(masked, colour=False)
        if mask.shape != image.shape[:2]:
            raise DataError(
                f"{picture}: has {image.shape[:2]} pixels, its mask {mask.shape}; expected one size"
            )
        if images and image.shape != images[0].shape:
            raise DataError(
                f"{picture}: has the shape {image.shape}, the first image {images[0].shape}; "
                "resize images and masks to one size"
            )
        images.append(image)
        masks.append(mask)
    stored = np.stack(masks)
    classes = 1 + int(stored[stored != manifest.NO_CLASS].max(initial=0))
    splits = {
        split: source.pick(order, lambda n: str(pictures[n]), images.__getitem__, stored)
        for split, order in source.split_at_random(len(images), options, str(path)).items()
    }
    return source.Source(
        options.name or path.resolve().name, source.IMAGE, classes, splits, (), specs.MASK
    )


def _read_picture(path: Path, *, colour: bool) -> npt.NDArray[np.uint8]:
    """Return (height, width, 3), or the levels (height, width) of a mask."""
    pillow = require("PIL.Image", "pillow", "plots", "reading masks")
    try:
        with pillow.open(path) as picture:
            # A mask with a palette has its classes as indices.
            mode = "RGB" if colour else picture.mode if picture.mode in ("L", "P") else "L"
            return np.asarray(picture.convert(mode), np.uint8)
    except OSError as error:
        raise DataError(f"{path}: can't be read as an image ({error})") from error


# A plain text is cut into pieces that overlap by one character, so that each is predicted once.


def is_characters(path: Path) -> bool:
    """Return whether `path` is a .txt file or a folder with a train.txt."""
    return path.suffix.lower() == ".txt" if path.is_file() else (path / "train.txt").is_file()


def load_characters(path: Path, options: source.Options) -> source.Source:
    """Read FILE.txt, whose last part is for testing, or FOLDER/train.txt and FOLDER/test.txt."""
    if path.is_file():
        text = _read_text(path)
        kept = len(text) - round(len(text) * options.test_fraction)
        texts = {"train": text[:kept], "test": text[kept:]}
    else:
        texts = {split: _read_text(path / f"{split}.txt") for split in ("train", "test")}
    characters = sorted(set("".join(texts.values())))
    # From 1 on: id 0 is padding.
    ids = {character: number for number, character in enumerate(characters, 1)}
    splits = {}
    for split, content in texts.items():
        numbers = np.array([ids[character] for character in content], np.int64)
        step = options.length - 1
        starts = np.arange(0, len(numbers) - step, step)
        if not len(starts):
            raise DataError(
                f"{path}: {len(numbers)} characters for {split} are fewer than --text-length="
                f"{options.length}"
            )
        pieces = numbers[starts[:, None] + np.arange(options.length)]
        count = len(pieces)
        order = source.shuffled(count, options.seed) if split == "train" else np.arange(count)
        nothing = np.zeros(count, np.int64)
        splits[split] = source.pick(order, str, pieces.__getitem__, nothing)
    name = options.name or path.resolve().stem
    # A line of the vocabulary file is a token: characters that end lines are escaped.
    tokens = (source.PADDING, *(c.encode("unicode_escape").decode() for c in characters))
    return source.Source(name, source.TEXT, 1, splits, (), specs.NOTHING, len(tokens), tokens)


def _read_text(path: Path) -> str:
    """Return the characters of a file as they are: a line may end in CR and LF."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read as UTF-8 ({error})") from error


# scikit-learn's digits have grey levels of 0 to 16.
_TEST_SHARE, _MAXIMUM = 5, 16


def load_digits(options: source.Options) -> source.Source:
    """Scale the 8x8 digits to 24x24 and pad them to MNIST's 28x28; every fifth is for testing."""
    digits = require("sklearn.datasets", "scikit-learn", "digits", "--source=digits").load_digits()
    bytes_8x8 = (digits.images * (255 / _MAXIMUM)).round().astype(np.uint8)
    images = np.pad(bytes_8x8.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    images, labels = images[..., np.newaxis], digits.target.astype(np.int64)
    test = np.arange(len(labels)) % _TEST_SHARE == 0
    splits = {}
    for split, chosen in (("train", ~test), ("test", test)):
        order = np.flatnonzero(chosen)
        splits[split] = source.pick(order, str, images.__getitem__, labels)
    return source.Source(options.name or "digits", source.IMAGE, 10, splits)
