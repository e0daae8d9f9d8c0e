"""Read data sets of TensorFlow Datasets: by name, or as prepared on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpu_training.data.convert.source import (
    IMAGE,
    TEXT,
    Example,
    Examples,
    Options,
    Source,
    test_count,
)
from tpu_training.errors import DataError, require

# What --source begins with if it names a data set instead of a folder.
BY_NAME = "tfds:"
# The first that is there is for testing, the next one for validation.
_TEST_NAMES = ("test", "validation")


def matches(directory: Path) -> bool:
    """Return whether `directory` is a version, such as tensorflow_datasets/mnist/3.0.1."""
    return all((directory / name).is_file() for name in ("dataset_info.json", "features.json"))


def load(directory: Path, options: Options) -> Source:
    """Read the images, undecoded, or the texts, and the class labels.

    Keeps the order of the files, which TensorFlow Datasets shuffled when it wrote them.
    """
    library = require(
        "tensorflow_datasets", "tensorflow-datasets", "datasets", f"--source={directory}"
    )
    try:
        builder = library.builder_from_directory(str(directory))
    except Exception as error:
        raise DataError(f"{directory}: tensorflow_datasets can't load it ({error})") from error
    return _source(library, builder, str(directory), options)


def load_by_name(source: str, options: Options) -> Source:
    """Prepare the data set of `source`, tfds:NAME[/CONFIG][:VERSION], unless it is; then read it.

    TensorFlow Datasets downloads it into its own folder, which TFDS_DATA_DIR sets.
    """
    library = require(
        "tensorflow_datasets", "tensorflow-datasets", "datasets", f"--source={source}"
    )
    try:
        builder = library.builder(source.removeprefix(BY_NAME))
        builder.download_and_prepare()
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"--source={source}: tensorflow_datasets can't prepare it ({reason})"
        ) from error
    return _source(library, builder, source, options)


def _source(library: Any, builder: Any, place: str, options: Options) -> Source:
    kinds = library.features
    features = builder.info.features
    feature = options.feature or _column(features, kinds.Image) or _column(features, kinds.Text)
    label = options.label or _column(features, kinds.ClassLabel)
    if feature is None or label is None or not {feature, label} <= set(features):
        raise DataError(
            f"{place}: its columns are {', '.join(features)}; expected images or texts and "
            "class labels; else name them with --feature and --label"
        )
    is_image = isinstance(features[feature], kinds.Image)
    splits: dict[str, Examples] = {}
    for split, slices in _slices(place, builder, options).items():
        splits[split] = _examples(library, builder, slices, feature, label, is_image)
    classes = features[label].num_classes
    names = tuple(features[label].names) if features[label].names else ()
    name = options.name or builder.name
    return Source(name, IMAGE if is_image else TEXT, classes, splits, names)


def _column(features: Any, kind: type) -> str | None:
    return next((name for name, found in features.items() if isinstance(found, kind)), None)


def _slices(directory: str, builder: Any, options: Options) -> dict[str, str]:
    """Return the slices of the splits for training, for testing and, if any, for validation."""
    sizes = {name: split.num_examples for name, split in builder.info.splits.items()}
    if not sizes.get("train"):
        raise DataError(f"{directory}: has no split train with examples, only {sizes}")
    found = [name for name in _TEST_NAMES if sizes.get(name)]
    if found:
        return {"train": "train", "test": found[0], **{name: name for name in found[1:]}}
    test = test_count(sizes["train"], options, directory)
    return {"train": f"train[{test}:]", "test": f"train[:{test}]"}


def _examples(
    library: Any, builder: Any, slices: str, feature: str, label: str, is_image: bool
) -> Examples:
    info = builder.info.splits[slices]
    decoders = {feature: library.decode.SkipDecoding()} if is_image else None

    def read() -> Iterator[Example]:
        config = library.ReadConfig(interleave_cycle_length=1)
        rows = builder.as_dataset(split=slices, decoders=decoders, read_config=config)
        for number, row in enumerate(rows.as_numpy_iterator()):
            content = bytes(row[feature])
            value = content if is_image else content.decode("utf-8", "replace")
            yield Example(f"{builder.data_dir} {slices} {number}", value, int(row[label]))

    return Examples(info.num_examples, read)
