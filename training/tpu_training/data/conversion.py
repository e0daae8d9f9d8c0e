"""`data convert`: read a source and write it as sharded TFRecord files with a manifest.

TensorFlow takes seconds to load, so it is imported where the first record is encoded: what is wrong
with a source, its options or the output folder is reported before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tpu_training.data import arrays, manifest, source, tables, tokenizer as tokenizers
from tpu_training.data.manifest import DataFile, Manifest, Split
from tpu_training.data.output import MOST_OPEN, NewFolder, new_folder, refuse_used
from tpu_training.data.source import Example, Examples, Options, Source
from tpu_training.data.tokenizer import Tokenizer
from tpu_training.errors import DataError, InputError
from tpu_training.models import spec as specs
from tpu_training.models.params import LARGEST_IMAGE

DIGITS = "digits"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Files are read whole (data/shards.py), so small ones mix better, and many serve many hosts:
# up to 512 of them, of 2 to 16 MiB. The largest datasets have larger ones.
_SMALLEST, _LARGEST, _SHARDS = 2 << 20, 16 << 20, 512
# Next to those of the output.
_OTHER_FILES = 256
_UNFINISHED = ".unfinished"
_CHUNK = 256
_CHANNELS = (1, 3)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Storage:
    """How to store the examples.

    Attributes:
        encoding: `raw` or `encoded` for images; None stores them as the source does.
        text_length: The number of token ids per text.
        vocabulary: A vocabulary file; None makes a vocabulary from the training texts.
        vocabulary_size: The largest size of a vocabulary made from the training texts.
        packed: Whether an example has as many texts as fit, without labels; longer ones are cut
            into several.
    """

    encoding: str | None = None
    text_length: int = 128
    vocabulary: str | None = None
    vocabulary_size: int = 8192
    packed: bool = False


def convert(
    source_name: str,
    output: str,
    options: Options | None = None,
    storage: Storage | None = None,
    load: Callable[[], None] = lambda: None,
) -> Manifest:
    """Convert the source, as `load_source` takes it, into the directory or gs:// URL `output`.

    Checks everything that needs no decoding before writing the first file, and calls `load` then.
    """
    refuse_used(output)
    options = options or Options()
    data = source.with_validation(load_source(source_name, options), options)
    load()
    return store(data, output, storage or Storage())


def store(data: Source, output: str, storage: Storage) -> Manifest:
    """Write `data` into the directory or gs:// URL `output`.

    The manifest is written last, so a directory with a manifest is complete. What a bucket got from
    a conversion that was killed is not written again.
    """
    start, tokenizer = -1, None
    file = tokenizers.vocabulary_file(data.tokens) if data.tokens else ("", b"")
    if data.kind == source.TEXT and not data.vocabulary:
        tokenizer = _tokenizer(data, storage)
        file = tokenizer.file
    elif storage.packed:
        what = "token ids" if data.vocabulary else f"{data.kind}s"
        raise InputError(f"--pack: is for texts, but {data.name} has {what}; omit it")
    if storage.packed and tokenizer:
        data, start = _packed(data, tokenizer, storage.text_length), tokenizer.start
    encoder = _encoder(data, storage, tokenizer)
    prefix = _UNSAFE.sub("-", data.name).strip("-.") or "data"
    splits: dict[str, Split] = {}

    def described() -> Manifest:
        if isinstance(encoder, Arrays):
            spec = encoder.form
        else:
            spec = manifest.stored_spec(
                *(encoder.encoding, encoder.shape, data.classes, encoder.vocabulary, data.targets),
                *(start, tokenizer.end[0] if tokenizer and tokenizer.end else -1),
                padding=tokenizer.padding if tokenizer else 0,
            )
            spec = dataclasses.replace(spec, several=data.form.several if data.form else ())
        ordered = {split: splits[split] for split in data.splits}
        return Manifest(
            *(prefix, spec, encoder.encoding, ordered, data.class_names, file[0], data.weighted)
        )

    with new_folder(output) as folder:
        # Before a training can begin, all other splits must be there. How large images are that
        # stay files is known when all are read.
        streams = bool(folder.url) and encoder.encoding != manifest.ENCODED
        announced = {name: examples.count for name, examples in data.splits.items()}
        earlier = folder.earlier()
        if earlier and not (streams and announced == earlier.counts):
            raise _of_another(output)
        if file[0] and not earlier:
            folder.write(*file)

        def publish(train: Split) -> Split:
            splits[manifest.TRAIN] = train
            planned = described()
            if earlier and not train.finished:
                planned = _continued(earlier, planned, output)
            folder.publish(planned)
            return planned.split(manifest.TRAIN)

        for split in sorted(data.splits, key=lambda name: streams and name == manifest.TRAIN):
            examples, trains = data.splits[split], split == manifest.TRAIN
            if earlier and not trains:
                splits[split] = earlier.split(split)
                continue
            splits[split] = write_split(
                *(folder, f"{prefix}-{split}", examples, encoder, data.targets, data.weighted),
                publish=publish if streams and trains else None,
            )
        written = described()
        folder.write(manifest.FILE_NAME, written.to_json().encode())
    counts = ", ".join(f"{split.examples} {name}" for name, split in splits.items())
    logger.info("data: wrote %s (%s) to %s", data.name, counts, output)
    return written


def _continued(earlier: Manifest, planned: Manifest, output: str) -> Manifest:
    """Return `earlier`, if that conversion wrote what is planned now. Raises InputError."""
    if not earlier.is_of(planned):
        raise _of_another(output)
    was = earlier.split(manifest.TRAIN)
    logger.info("data: %d of %d files are in %s", was.finished, len(was.files), output)
    return earlier


def _of_another(output: str) -> InputError:
    return InputError(
        f"--output={output}: an unfinished conversion of another source, or with other options, is "
        "there; choose a new folder, or remove this one"
    )


def are_written(splits: Mapping[str, Any]) -> bool:
    """Return whether `write_given` writes the splits."""
    return manifest.TEST in splits and all(map(arrays.fit_files, splits.values()))


def write_given(splits: Mapping[str, Any], model_dir: str) -> str | None:
    """Write arrays of bytes, token ids or texts below `model_dir`, and return where.

    What is there is not written again: the content names the folder. None for other examples, and
    for those without a test split. Raises InputError for a wrong shape or type.
    """
    if not are_written(splits):
        return None
    digest = hashlib.sha256()
    for split in sorted(splits):
        for values in splits[split]:
            array = np.asarray(values)
            digest.update(f"{array.dtype} {array.shape}".encode())
            objects = array.dtype.kind == "O"
            digest.update(repr(array.tolist()).encode() if objects else array.tobytes())
    from tpu_training.data import files  # It loads TensorFlow.

    directory = f"{model_dir.rstrip('/')}/data-{digest.hexdigest()[:12]}"
    if files.size(f"{directory}/{manifest.FILE_NAME}") is None:
        store(arrays.source_of_arrays("data", splits, ()), directory, Storage())
    return directory


def _encoder(data: Source, storage: Storage, tokenizer: Tokenizer | None) -> Encoder:
    first: Any = next(data.splits["train"].read()).feature
    if data.vocabulary:
        (length,) = np.shape(first)
        return Tokens(np.asarray, length, data.vocabulary)
    if tokenizer:
        length = storage.text_length
        return Tokens(lambda words: tokenizer.encode(str(words), length), length, tokenizer.size)
    if data.form and data.kind == source.ARRAY:
        return Arrays(data.form)
    encoding = manifest.ENCODED if isinstance(first, bytes) else manifest.RAW
    return Images(storage.encoding or encoding)


def _tokenizer(data: Source, storage: Storage) -> Tokenizer:
    """Take the tokens of the given file, or make them from the training texts."""
    if storage.vocabulary is None:
        texts = (str(example.feature) for example in data.splits["train"].read())
        tokens = tokenizers.learn_vocabulary(texts, storage.vocabulary_size)
        logger.info("data: collected a vocabulary of %d tokens", len(tokens))
        return tokenizers.WordPiece(tokens)
    path = Path(storage.vocabulary)
    try:
        return tokenizers.tokenizer_of(path.name, path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--vocabulary={path}: can't be read ({error})") from error
    except ValueError as error:
        raise DataError(
            f"--vocabulary={path}: {error}; expected one token per line as in BERT's vocab.txt, "
            "a tokenizer.json, or SentencePiece's .model"
        ) from error


def _is_function_file(path: Path) -> bool:
    return path.is_file() and manifest.is_function(path.name)


def _load_function(path: Path, options: Options) -> Source:
    from tpu_training.data.function import load_examples  # It loads TensorFlow.

    return load_examples(path, options)


# What recognises a path and what reads it. The first that does wins: tables, which takes any folder
# of folders, is last.
_FORMS: tuple[tuple[Callable[[Path], bool], Callable[[Path, Options], Source]], ...] = (
    (tables.is_prepared, tables.load_prepared),
    (arrays.is_idx, arrays.load_idx),
    (arrays.is_characters, arrays.load_characters),
    (arrays.is_masks, arrays.load_masks),
    (_is_function_file, _load_function),
    (tables.matches, tables.load),
)


def load_source(name: str, options: Options) -> Source:
    """Read the source `name`: a folder or file in one of the forms, a name, or the word digits.

    Raises:
        InputError: It does not exist or has an unknown format.
        DataError: It does not conform to its format.
    """
    if name == DIGITS:
        return arrays.load_digits(options)
    path = Path(name)
    if name.startswith(manifest.BY_NAME):
        is_hub = name.startswith(manifest.HUB)
        return (tables.load_hub if is_hub else tables.load_prepared)(name, options)
    if not path.exists():
        raise InputError(f"--source={name}: no such file or directory")
    for matches, load in _FORMS:
        if matches(path):
            return load(path, options)
    raise InputError(
        f"--source={name}: unknown format; expected a folder with MNIST's four IDX files, with "
        "one folder of images per class (or train/ and test/ with such), or with images/ and "
        "masks/; a CSV file or a folder with train.csv and test.csv; a .txt file for a language "
        "model; Parquet files; WebDataset's tar files; a version's folder of TensorFlow "
        "Datasets, tfds:NAME or hf:OWNER/NAME; a Python file with a function dataset(split, "
        "context); or the word digits"
    )


# Sharded TFRecord files: how features are encoded, dealt to files and checksummed.


def write_split(
    folder: NewFolder,
    prefix: str,
    examples: Examples,
    encoder: Encoder,
    targets: str,
    weighted: bool = False,
    publish: Callable[[Split], Split] | None = None,
) -> Split:
    """Write `examples` to files PREFIX-00000-of-0000N.tfrecord in turn.

    The files get their names once complete. `publish` takes the files before the first ones are
    written, and returns those that are there already; and after each group, with what is there.
    """
    from tpu_training.data import files  # It loads TensorFlow.

    # Encoding checks each image by decoding it, which is most of the time, so it runs in threads:
    # TensorFlow releases Python's lock while it decodes. `map` keeps the order.
    def record(example: Example) -> bytes:
        fields = encoder.encode(example) | _target(example.label, targets)
        return _serialise(fields | ({manifest.WEIGHT: [example.weight]} if weighted else {}))

    def records(pool: ThreadPoolExecutor, begin: int = 0) -> Iterator[bytes]:
        rows = islice(folder.alive(examples.read()), begin, None)
        while chunk := list(islice(rows, _CHUNK)):
            yield from pool.map(record, chunk)

    with ThreadPoolExecutor() as pool:
        rows = records(pool)
        first = list(islice(rows, _CHUNK))
        shards = _count_shards(first, examples.count, bool(folder.url))
        split = Split(examples.count, _planned(prefix, first, examples.count, shards, folder))
        split = publish(split) if publish else split
        written, done = list(split.files), split.finished
        found = sum(file.examples for file in written[:done])
        rest = records(pool, found) if done else chain(first, rows)
        for begin in range(done, shards, folder.at_once):
            end = min(begin + folder.at_once, shards)
            share = sum(file.examples for file in written[begin:end])
            # The last files take what was not announced, too.
            part = islice(rest, share if end < shards else None)
            paths = [folder.path / file.name for file in written[begin:end]]
            unfinished = [path.with_suffix(_UNFINISHED) for path in paths]
            found += _deal(part, unfinished)
            files_of = zip(range(begin, end), unfinished, paths, strict=True)
            for number, path, final in folder.alive(files_of):
                size, digest = path.replace(final).stat().st_size, files.sha256(str(final))
                count = written[number].examples
                written[number] = DataFile(final.name, count, size, digest)
                folder.finish(final)
            split = Split(examples.count, tuple(written))
            split = publish(split) if publish else split
    if found != examples.count:
        raise DataError(
            f"{folder.url or folder.path}/{prefix}: the source has {found} examples, but "
            f"announced {examples.count}"
        )
    return split


def _planned(
    prefix: str, first: list[bytes], count: int, shards: int, folder: NewFolder
) -> tuple[DataFile, ...]:
    """Return the files that `count` records make, with the number that `_deal` writes to each."""
    digest, planned = hashlib.sha256(b"".join(first)).hexdigest(), list[DataFile]()
    for begin in range(0, shards, folder.at_once):
        end = min(begin + folder.at_once, shards)
        share = count * end // shards - count * begin // shards
        turns, more = divmod(share, end - begin)
        for n in range(begin, end):
            extra = (n - begin - turns) % (end - begin) < more
            name = f"{prefix}-{n:05d}-of-{shards:05d}.tfrecord"
            planned.append(DataFile(name, turns + extra, 0, digest))
    return tuple(planned)


def _count_shards(first: list[bytes], count: int, in_turn: bool) -> int:
    """Return the number of files for `count` records, of which these are the first.

    Unless some are written after the others, they must be open at the same time.
    """
    size = sum(map(len, first)) * count // max(1, len(first))
    wanted = math.ceil(size / min(max(size // _SHARDS, _SMALLEST), _LARGEST))
    if in_turn:
        return max(1, min(wanted, count))
    # The number is estimated from the first records, whose size may not be typical; only the mean
    # size of a file depends on it.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_OPEN if hard == resource.RLIM_INFINITY else min(MOST_OPEN, hard)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return max(1, min(wanted, allowed - _OTHER_FILES, count))


def _deal(records: Iterator[bytes], paths: list[Path]) -> int:
    """Write the records to `paths` in turn; return how many there were.

    Each turn begins one file later, or a source with ten classes in turn would give each of ten
    files a class of its own, and validation, which takes whole files, no others.
    """
    import tensorflow as tf

    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(str(path))) for path in paths]
        for record in records:
            writers[(count + count // len(paths)) % len(paths)].write(record)
            count += 1
    return count


# The records follow tf.train.Example, so that other readers of TFRecord can use them, too.


def _target(label: source.Target, targets: str) -> dict[str, Any]:
    """Return an example's targets by name as data/preprocessing.py reads them."""
    if targets == specs.NOTHING:
        return {}
    if targets == specs.CLASS:
        return {manifest.LABEL: [label]}
    if targets == specs.SEVERAL:
        return _arrays(manifest.TARGETS_FIELD, label)
    values = np.asarray(label)
    if targets == specs.MASK:
        return {manifest.TARGETS_FIELD: values.astype(np.uint8).tobytes()}
    return {manifest.TARGETS_FIELD: values.ravel().tolist()}


def _arrays(name: str, values: Any) -> dict[str, bytes]:
    """Return the bytes of an array, or of several as NAME/KEY."""
    if not isinstance(values, Mapping):
        return {name: np.asarray(values).tobytes()}
    return {f"{name}/{key}": np.asarray(each).tobytes() for key, each in values.items()}


def _serialise(values: dict[str, Any]) -> bytes:
    """Return the tf.train.Example of bytes, floats or whole numbers by their names."""
    from tensorflow import train

    features = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            features[name] = train.Feature(bytes_list=train.BytesList(value=[value]))
        elif value and isinstance(value[0], float):
            features[name] = train.Feature(float_list=train.FloatList(value=value))
        else:
            features[name] = train.Feature(int64_list=train.Int64List(value=value))
    example = train.Example(features=train.Features(feature=features))
    # A conversion that continues another one compares them.
    return bytes(example.SerializeToString(deterministic=True))


@dataclass
class Images:
    """Images as unsigned bytes of one shape (`raw`), or as JPEG and PNG files (`encoded`).

    Each file is decoded once to check it.
    """

    encoding: str
    vocabulary = 0
    _shapes: set[tuple[int, ...]] = field(default_factory=set)
    _warned: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels, colour if any image is; 0 for sizes that differ.

        Valid once all images are encoded.
        """
        heights, widths, channels = (set(sizes) for sizes in zip(*self._shapes, strict=True))
        same = len(heights) == len(widths) == 1
        return (*((*heights, *widths) if same else (0, 0)), max(channels))

    def encode(self, example: Example) -> dict[str, bytes]:
        """Return the image's bytes, row by row, or its file's content."""
        return {manifest.FEATURES[self.encoding]: self._bytes(example.place, example.feature)}

    def _bytes(self, place: str, feature: Any) -> bytes:
        if self.encoding == manifest.ENCODED and not isinstance(feature, bytes):
            import tensorflow as tf

            feature = bytes(tf.io.encode_png(feature).numpy())
        image = _decode(place, feature) if isinstance(feature, bytes) else np.asarray(feature)
        if max(image.shape[:2]) > LARGEST_IMAGE and not self._warned:
            self._warned = True
            logger.warning(
                "data: %s has %dx%d pixels; every epoch decodes images wider or higher than %d "
                "at full size; scale them down first",
                *(place, image.shape[1], image.shape[0], LARGEST_IMAGE),
            )
        if isinstance(feature, bytes) and self.encoding == manifest.ENCODED:
            # The transparency channel is dropped on reading.
            channels = image.shape[2] if image.shape[2] in _CHANNELS else image.shape[2] - 1
            self._shapes.add((*image.shape[:2], channels))
            return feature
        self._shapes = self._shapes or {image.shape}
        if image.shape not in self._shapes or image.ndim != 3:
            raise DataError(
                f"{place}: has the shape {image.shape}, the first image "
                f"{next(iter(self._shapes))}; store images of different sizes with "
                "--encoding=encoded"
            )
        return image.tobytes()


@dataclass
class Tokens:
    """Texts as token ids of one length, padded with 0; `ids` gives those of a feature."""

    ids: Callable[[Any], Any]
    length: int
    vocabulary: int
    encoding = manifest.TOKENS

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of ids."""
        return (self.length,)

    def encode(self, example: Example) -> dict[str, bytes]:
        """Return the ids' bytes: a list of numbers takes several times as long to read."""
        ids = np.asarray(self.ids(example.feature), manifest.token_dtype(self.vocabulary))
        return {manifest.FEATURES[self.encoding]: ids.tobytes()}


@dataclass
class Arrays:
    """Arrays as their bytes; `form` has the name, shape and type of each."""

    form: specs.DataSpec
    encoding = manifest.ARRAY

    def encode(self, example: Example) -> dict[str, bytes]:
        """Return the bytes of each."""
        return _arrays(manifest.FEATURES[self.encoding], example.feature)


Encoder: TypeAlias = Images | Tokens | Arrays


def _decode(place: str, content: bytes) -> Any:
    """Return the image, unsigned bytes (height, width, channels). Raises DataError."""
    import tensorflow as tf

    try:
        return tf.io.decode_image(content, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        reason = error.message.split("}} ", 1)[-1].partition("[Op:")[0].strip()
        raise DataError(f"{place}: can't be decoded as an image ({reason})") from error


# Examples that are filled at the same time: more would save hardly any padding.
_OPEN = 256


def _packed(data: Source, tokenizer: Tokenizer, length: int) -> Source:
    """Return a source whose examples are `length` token ids of as many texts as fit."""

    def pack(examples: Examples) -> Iterator[list[int]]:
        open_rows: list[list[int]] = []
        for example in examples.read():
            ids = tokenizer.whole(str(example.feature))
            if tokenizer.end == [tokenizer.start]:
                ids.pop()  # The next text's beginning ends this one.
            # Each part of a text that is too long begins as a text does.
            step = length - 1
            for at in range(1, len(ids), step):
                part = [tokenizer.start, *ids[at : at + step]]
                fits = [row for row in open_rows if len(row) + len(part) <= length]
                if fits:
                    max(fits, key=len).extend(part)
                    continue
                open_rows.append(part)
                if len(open_rows) > _OPEN:
                    fullest = max(open_rows, key=len)
                    open_rows.remove(fullest)
                    yield fullest
        yield from open_rows

    def split(name: str, examples: Examples) -> Examples:
        lengths = [len(row) for row in pack(examples)]
        share = 100 * sum(lengths) / (length * len(lengths))
        logger.info(
            "data: packed %d texts into %d examples of %d tokens for %s, %.1f %% of them used",
            *(examples.count, len(lengths), length, name, share),
        )

        def read() -> Iterator[Example]:
            for number, row in enumerate(pack(examples)):
                more = (0, length - len(row))
                ids = np.pad(row, more, constant_values=tokenizer.padding)
                yield Example(f"{name} example {number}", ids, 0)

        return Examples(len(lengths), read)

    splits = {name: split(name, examples) for name, examples in data.splits.items()}
    unlabelled: dict[str, Any] = {"targets": specs.NOTHING, "classes": 1, "class_names": ()}
    return dataclasses.replace(data, splits=splits, vocabulary=tokenizer.size, **unlabelled)
