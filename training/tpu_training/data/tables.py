"""Sources that two libraries read: Hugging Face's `datasets`, and TensorFlow Datasets.

`datasets` reads CSV and Parquet files, WebDataset's tar files and folders of images. It writes what
it reads to an Arrow file in a temporary folder and maps it into memory, so a source may be larger
than the memory. Its builders are called directly and ask no network. They decompress and unpack
what looks like an archive, whatever its name says, so nothing reaches them that doesn't begin as a
file of its kind does.
"""

import csv
import math
import shutil
import tarfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from glob import escape
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tpu_training.data import source as sources
from tpu_training.data.manifest import HUB, MAGICS, TFDS
from tpu_training.data.source import Feature, Options, Source
from tpu_training.errors import DataError, InputError, require
from tpu_training.models.spec import LABELS, NUMBERS

# What the names of files, or of their folders, begin with. Of the others the first that exists is
# for testing, the next one for validation.
_TRAIN, _OTHERS = "train", ("test", "validation", "valid", "val", "dev")
_SPLITS = (_TRAIN, "test", "validation")
# Where Hugging Face's repositories keep their files.
_FOLDER = "data"
_TABLES = _PARQUET, _CSV, _TAR = ".parquet", ".csv", ".tar"
_PARQUET_MAGIC = b"PAR1"
_TEXTS, _IMAGES = ("text", "sentence", "content", "txt"), ("image", "img", "jpg", "jpeg", "png")
_LABELS = ("label", "labels", "class", "target", "fine_label", "cls")
# WebDataset: what an example is called.
_KEY = "__key__"
_STRINGS, _BYTES = ("string", "large_string"), ("binary", "large_binary")
_MOST_NAMED = 3

Tables = Mapping[str, Any]
Files = Mapping[str, Sequence[Path]]


def matches(path: Path) -> bool:
    """Return whether the library may read `path`; a folder with folders may hold images."""
    return bool(_suffix(path)) or (path.is_dir() and bool(_folders(path)))


def load(path: Path, options: Options, called: str = "") -> Source:
    """Read a column of images or texts, and one of labels or several of other targets.

    In a CSV file without a column of texts, every column but the label or the targets is a pixel of
    a square image. Without a test split, part of the training rows is for testing.
    """
    library = require("datasets", "datasets", "datasets", f"--source={path}")
    suffix = _suffix(path)
    files = _files(path, suffix)
    tables = _read(library, path, files, suffix)
    place = _places(path, files, suffix, tables)
    labels = _labels(path, tables, options, place)
    kind, readers = _features(library, path, tables, options, place)
    counts = {split: len(table) for split, table in tables.items()}
    splits = {
        split: sources.pick(order, partial(place, origin), readers[origin], labels.splits[origin])
        for split, (origin, order) in sources.orders(counts, options, str(path)).items()
    }
    name = options.name or called or path.resolve().stem
    return Source(name, kind, labels.classes, splits, labels.names, labels.targets)


def load_hub(given: str, options: Options) -> Source:
    """Read the tables and shards of a repository on the Hugging Face Hub.

    `given` is hf:OWNER/NAME[/FOLDER][@REVISION]; a folder is what the Hub calls a subset. The files
    go to the library's own cache (HF_HOME), and no code of the repository runs.
    """
    library = require("huggingface_hub", "huggingface_hub", "datasets", f"--source={given}")
    name, _, revision = given.removeprefix(HUB).partition("@")
    owner, _, rest = name.partition("/")
    repository, *folders = rest.split("/")
    if not all((owner, repository, *folders)):
        raise InputError(f"{given}: expected {HUB}OWNER/NAME[/FOLDER][@REVISION]")
    whole = f"{owner}/{repository}"
    where = {"repo_id": whole, "repo_type": "dataset"}
    where |= {"revision": revision} if revision else {}
    try:
        files = [Path(file) for file in library.list_repo_files(**where)]
        every = [file for file in files if file.suffix in _TABLES]
        there = [file for file in every if file.parent in _searched(Path(*folders))]
        suffix = min((file.suffix for file in there), key=_TABLES.index, default="")
        own = [escape(str(file)) for file in there if file.suffix == suffix]
        root = library.snapshot_download(allow_patterns=own, **where) if own else ""
    except Exception as error:  # Its own types, those of its HTTP client, and of the disk.
        reason = str(error).strip().partition("\n")[0]
        cure = "check the name and the network; if it is private or gated, set HF_TOKEN"
        raise DataError(f"{given}: can't be downloaded ({reason}); {cure}") from error
    if not own:
        cure = f"try {HUB}{whole}/SUBSET@refs/convert/parquet"
        if found := sorted({str(file.parent) for file in every}):
            shown = ", ".join(found[:8])
            cure = f"name one of the folders {shown}, as in {HUB}{whole}/{found[0]}"
        raise DataError(f"{given}: has no CSV, Parquet or tar files there; {cure}")
    return load(Path(root, *folders), options, repository)


def find_splits(path: Path, suffix: str) -> dict[str, list[Path]]:
    """Return the files of `train` and, where their names say so, of `test` and `validation`.

    Raises:
        DataError: Only some names say what they belong to.
    """
    if path.is_file():
        return {_TRAIN: [path]}
    files = _list(path, suffix)
    named = {file: _split_of(file.relative_to(path)) for file in files}
    if not any(named.values()):
        return {_TRAIN: files}
    if unnamed := [file for file, split in named.items() if split is None]:
        raise DataError(
            f"{unnamed[0]}: its name must begin with {_TRAIN}, {' or '.join(_OTHERS)}, like "
            "others there; rename or remove it"
        )
    if _TRAIN not in named.values():
        raise DataError(f"{path}: contains no file whose name begins with {_TRAIN}")
    return {
        split: [file for file in files if named[file] == name]
        for split, name in _named_splits(named.values()).items()
    }


def _named_splits(names: Iterable[str | None]) -> dict[str, str]:
    """Map train, test and validation to what a source with a split `train` calls them."""
    found = [name for name in _OTHERS if name in names]
    return dict(zip(_SPLITS, (_TRAIN, *found), strict=False))


def holds(path: Path, suffix: str) -> bool:
    """Return whether `path` is a file with `suffix`, or a folder with such files."""
    return path.suffix.lower() == suffix if path.is_file() else bool(_list(path, suffix))


def _list(path: Path, suffix: str) -> list[Path]:
    """Return the files in the folder and in those within it that are called as splits are."""
    return sorted(file for folder in _searched(path) for file in folder.glob(f"*{suffix}"))


def _searched(path: Path) -> list[Path]:
    return [path, *(path / name for name in (_FOLDER, _TRAIN, *_OTHERS))]


def _split_of(file: Path) -> str | None:
    """Return the split that the name of `file`, or else of its nearest folder, begins with."""
    parts: Sequence[str] = (file.stem, *reversed(file.parts[:-1]))
    found = (name for part in parts for name in (_TRAIN, *_OTHERS) if part.startswith(name))
    return next(found, None)


def _suffix(path: Path) -> str:
    """Return how the tables or shards at `path` end; "" for what may be images."""
    return next((suffix for suffix in _TABLES if holds(path, suffix)), "")


def _files(path: Path, suffix: str) -> Files:
    """Return the files of each split, none of which is an archive under another name."""
    if not suffix:
        return _images(path)
    files = find_splits(path, suffix)
    for file in (file for found in files.values() for file in found):
        if suffix == _TAR:
            try:
                # `r:` refuses compression, which the library would undo, whatever the name says.
                tarfile.open(file, "r:").close()
            except (OSError, tarfile.TarError) as error:
                raise DataError(
                    f"{file}: can't be read as an uncompressed tar file ({error})"
                ) from error
        if suffix == _PARQUET:
            with file.open("rb") as content:
                if content.read(len(_PARQUET_MAGIC)) != _PARQUET_MAGIC:
                    raise DataError(f"{file}: can't be read: it isn't a Parquet file")
    return files


def _images(root: Path) -> Files:
    """List ROOT/train/CLASS and ROOT/test/CLASS, or ROOT/CLASS, by class and name."""
    folders = {_TRAIN: root}
    if (root / _TRAIN).is_dir():
        names = _named_splits([folder.name for folder in _folders(root)])
        if len(names) == 1:
            raise DataError(f"{root}: contains a folder train, but none of {', '.join(_OTHERS)}")
        folders = {split: root / name for split, name in names.items()}
    classes = {folder.name for folder in _folders(folders[_TRAIN])}
    files: dict[str, list[Path]] = {}
    for split, folder in folders.items():
        files[split] = []
        for each in _folders(folder):
            if each.name not in classes:
                raise DataError(
                    f"{folder}: contains the class {each.name}, which {folders[_TRAIN]} does not"
                )
            found = [file for file in sorted(each.iterdir()) if not file.name.startswith(".")]
            sources.refuse_outside(found, root)
            if not found:
                raise DataError(f"{each}: this class's folder contains no image")
            files[split] += found
    wrong = [str(file) for found in files.values() for file in found if not _is_image(file)]
    if wrong:
        more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise DataError(
            f"{', '.join(wrong[:_MOST_NAMED])}{more}: neither JPEG nor PNG; convert or remove them"
        )
    return files


def _folders(directory: Path) -> list[Path]:
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_image(file: Path) -> bool:
    """Look at the first bytes, too, which is quick.

    A file with a wrong name would be found by decoding it, perhaps after hours.
    """
    if file.suffix.lower() not in (".jpg", ".jpeg", ".png") or not file.is_file():
        return False
    with file.open("rb") as content:
        return content.read(8).startswith(MAGICS)


def _read(library: Any, path: Path, files: Files, suffix: str) -> Tables:
    """Let the library write the rows to an Arrow file, which goes with the tables."""
    from datasets.data_files import DataFilesDict, DataFilesList

    builder, settings = _builder(library, files, suffix)
    # The empty lists stand for where files come from, by which the library would look for a cache.
    given = DataFilesDict(
        {split: DataFilesList([str(p.resolve()) for p in ps], []) for split, ps in files.items()}
    )
    folder = mkdtemp(prefix="tpu-training-")
    try:
        with _silent(library):
            writer = builder(cache_dir=folder, data_files=given, **settings)
            writer.download_and_prepare()
            full = [name for name, split in writer.info.splits.items() if split.num_examples]
            tables = {split: writer.as_dataset(split) for split in files if split in full}
        if empty := [split for split in files if not len(tables.get(split, ()))]:
            raise DataError(f"{path}: the split {empty[0]} is empty")
    except Exception as error:  # The library has no type of its own for most of them.
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, DataError):
            raise
        reason = error.__cause__ or error
        raise DataError(f"{path}: can't be read ({str(reason).strip()})") from error
    # The tables map the Arrow file, so it can only go when they are garbage.
    weakref.finalize(tables[_TRAIN], shutil.rmtree, folder, ignore_errors=True)
    return tables


def _builder(library: Any, files: Files, suffix: str) -> tuple[Any, dict[str, Any]]:
    """Return the library's class for files that end in `suffix`, and its settings."""
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder
    from datasets.packaged_modules.parquet.parquet import Parquet
    from datasets.packaged_modules.webdataset.webdataset import WebDataset

    class Shards(WebDataset):  # type: ignore[misc]
        """Without members that would have to be decompressed; a class may be a word."""

        DECODERS: ClassVar = {"txt": bytes.decode, "cls": bytes.decode}

        @classmethod
        def _get_pipeline_from_tar(cls, tar_path: str, tar_iterator: Any) -> Any:
            ends = (".gz", ".bz2", ".xz", ".lz4", ".zst")
            plain = (each for each in tar_iterator if not each[0].lower().endswith(ends))
            return super()._get_pipeline_from_tar(tar_path, plain)

    if suffix == _CSV:
        # As text: the library would take 007 for 7 and "nan" for a missing value.
        texts = library.Features({name: library.Value("string") for name in _columns(files)})
        plain = {"keep_default_na": False, "encoding": "utf-8-sig"}
        return Csv, {"features": texts, "index_col": False, **plain}
    if suffix == _PARQUET:
        return Parquet, {}
    if suffix == _TAR:
        return Shards, {}
    return ImageFolder, {"drop_labels": False, "drop_metadata": True}


@contextmanager
def _silent(library: Any) -> Iterator[None]:
    """Keep the library's progress bars and messages, which repeat its errors, off the terminal."""
    level, hidden = library.logging.get_verbosity(), library.are_progress_bars_disabled()
    library.logging.set_verbosity(library.logging.CRITICAL)
    library.disable_progress_bars()
    try:
        yield
    finally:
        library.logging.set_verbosity(level)
        if not hidden:
            library.enable_progress_bars()


def _places(path: Path, files: Files, suffix: str, tables: Tables) -> sources.Place:
    """Return what names an example: by its file, by its key in a shard, or by its row."""
    names: dict[str, list[str]] = {}
    rows = {split: f"{path} {split}" for split in tables}
    for split, found in files.items():
        if len(found) == 1:
            rows[split] = str(found[0])
        if suffix == _TAR:
            names[split] = [f"{rows[split]} {key}" for key in tables[split][_KEY][:]]
        elif not suffix:
            names[split] = [str(file) for file in found]

    def place(split: str, row: int) -> str:
        # From 1, without the header, as `_header` counts the rows of a CSV file.
        return names[split][row] if split in names else f"{rows[split]} row {row + 1}"

    return place


def _labels(path: Path, tables: Tables, options: Options, place: sources.Place) -> sources.Labels:
    """Turn the column of labels into classes, or those of targets into numbers or labels."""
    columns = tables[_TRAIN].features
    if options.columns:
        _check(path, columns, *options.columns)
        rows = {
            split: list(zip(*(map(_written, table[c][:]) for c in options.columns), strict=True))
            for split, table in tables.items()
        }
        kind = NUMBERS if options.target else LABELS
        return sources.read_targets(rows, options.columns, kind, place)
    named = [name for name, kind in columns.items() if hasattr(kind, "str2int")]
    usual = next((name for name in (*named, *_LABELS) if name in columns), _LABELS[0])
    column = options.label or usual
    _check(path, columns, column)
    values = {split: table[column][:] for split, table in tables.items()}
    # The source has numbered its classes: `number_labels` would number them again.
    if names := getattr(columns.get(column), "names", None):
        numbers = {split: np.array(each, np.int64) for split, each in values.items()}
        sources.check_labels(numbers, len(names), f"{path} {column}")
        return sources.Labels(len(names), numbers, tuple(names))
    written = {split: [_written(value) for value in each] for split, each in values.items()}
    return sources.number_labels(written, place)


def _written(value: object) -> str:
    """Return a value as a CSV file has it, so that labels of all forms are numbered alike."""
    return "" if value is None else str(value).strip()


def _check(path: Path, columns: Mapping[str, Any], *needed: str) -> None:
    """Raise DataError for the first of the `needed` columns that is missing."""
    if missing := [name for name in needed if name not in columns]:
        shown = ", ".join(list(columns)[:8]) + (" …" if len(columns) > 8 else "")
        raise DataError(
            f"{path}: there is no column {missing[0]}, only {shown}; name the columns with "
            "--label and --feature"
        )


def _features(
    library: Any, path: Path, tables: Tables, options: Options, place: sources.Place
) -> tuple[str, dict[str, Callable[[int], Feature]]]:
    """Return whether the features are images or texts, and what reads those of each split."""
    columns = tables[_TRAIN].features
    column = options.feature or _feature_column(library, columns)
    if not column and _suffix(path) == _CSV:
        learnt = options.columns or ((options.label,) if options.label else _LABELS)
        return sources.IMAGE, {
            split: _pixels(path, table, learnt, partial(place, split)).__getitem__
            for split, table in tables.items()
        }
    column = column or _TEXTS[0]
    _check(path, columns, column)
    kind = columns[column]
    is_text = getattr(kind, "dtype", "") in _STRINGS
    if not is_text and not _may_be_image(library, kind):
        raise DataError(f"{path}: column {column} is {kind}, expected images or strings")
    root = path if path.is_dir() else path.parent

    def reader(split: str) -> Callable[[int], Feature]:
        table = tables[split].select_columns([column])
        # Undecoded: the file's own bytes are stored, and a JPEG would lose by being encoded again.
        if isinstance(kind, library.Image):
            table = table.cast_column(column, library.Image(decode=False))
        if is_text:
            return lambda row: str(table[row][column] or "")
        return lambda row: image_content(table[row][column], root, place(split, row))

    return sources.TEXT if is_text else sources.IMAGE, {split: reader(split) for split in tables}


def _feature_column(library: Any, columns: Mapping[str, Any]) -> str | None:
    """Return the column of images, or else of texts, by its type and a usual name."""
    images = [name for name, kind in columns.items() if isinstance(kind, library.Image)]
    usual = [n for n in _IMAGES if n in columns and _may_be_image(library, columns[n])]
    texts = [n for n in _TEXTS if n in columns and getattr(columns[n], "dtype", "") in _STRINGS]
    return next(iter((*images, *usual, *texts)), None)


def _may_be_image(library: Any, kind: Any) -> bool:
    """Return whether a column holds images, files' contents, or structs with a field `bytes`."""
    of_struct = isinstance(kind, dict) and "bytes" in kind
    return isinstance(kind, library.Image) or of_struct or getattr(kind, "dtype", "") in _BYTES


def image_content(value: Any, root: Path, place: str) -> bytes:
    """Return the content of an image's file, from the row itself or from a file below `root`.

    Raises:
        DataError: There is no content, or the path leads out of `root`.
    """
    content = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(content, bytes):
        return content
    path = root / ((isinstance(value, dict) and value.get("path")) or "")
    sources.refuse_outside((path,), root)
    if path.is_file():
        return path.read_bytes()
    raise DataError(f"{place}: contains no image")


def _columns(files: Files) -> list[str]:
    """Return the columns of CSV files, which must have the same ones."""
    found = {file: _header(file) for each in files.values() for file in each}
    first = next(iter(found.values()))
    for file, header in found.items():
        if header != first:
            raise DataError(
                f"{file}: its columns ({', '.join(header)}) differ from those of the first file"
            )
    return first


def _header(file: Path) -> list[str]:
    """Return the columns of a CSV file, every row of which must have as many values.

    The library would fill a short row with nothing.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.reader(_without_nul(lines, file), strict=True)
            header = next(rows, None)
            if not header:
                raise DataError(
                    f"{file}: is empty; expected a header row with the names of the columns"
                )
            for number, row in enumerate(filter(None, rows), 1):
                if len(row) != len(header):
                    raise DataError(
                        f"{file}: {len(row)} values in row {number}, expected {len(header)}"
                    )
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: isn't UTF-8; save it as UTF-8, or convert it, with its encoding after -f: "
            f"`iconv -f WINDOWS-1252 -t UTF-8 {file.name} > utf8.csv`"
        ) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{file}: can't be read as CSV ({error})") from error
    return header


def _without_nul(lines: Iterable[str], file: Path) -> Iterator[str]:
    """Yield `lines`; a NUL byte means an archive, which the library would unpack."""
    for line in lines:
        if "\0" in line:
            raise DataError(f"{file}: contains NUL bytes, so it is not CSV")
        yield line


def _pixels(
    path: Path, table: Any, learnt: Sequence[str], place: Callable[[int], str]
) -> npt.NDArray[np.uint8]:
    """Return the square images of a table's rows: all columns but those `learnt`, as bytes."""
    columns = [name for name in table.column_names if name not in learnt]
    grey, colour = math.isqrt(len(columns)), math.isqrt(len(columns) // 3)
    shape = (grey, grey, 1) if grey**2 == len(columns) else (colour, colour, 3)
    if math.prod(shape) != len(columns) or not columns:
        raise DataError(
            f"{path}: {len(columns)} pixel columns do not form a square image with one or three "
            "channels; for texts, name the column with --feature"
        )
    pixels = np.zeros((len(table), len(columns)), np.uint8)
    for number, name in enumerate(columns):
        values = np.array([sources.number_in(text) for text in table[name][:]], np.float64)
        wrong = np.flatnonzero(~((values >= 0) & (values <= 255) & (values % 1 == 0)))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{place(row)}: column {name} has {table[name][row]!r}; expected pixels, whole "
                "numbers from 0 to 255; name a column of texts with --feature, and columns of "
                "numbers to learn with --target"
            )
        pixels[:, number] = values
    return pixels.reshape(-1, *shape)


# TensorFlow Datasets. Its own order stays: it shuffles when it writes.


def is_prepared(directory: Path) -> bool:
    """Return whether `directory` is a version, such as tensorflow_datasets/mnist/3.0.1."""
    return all((directory / name).is_file() for name in ("dataset_info.json", "features.json"))


def load_prepared(given: Path | str, options: Options) -> Source:
    """Read the images, undecoded, or the texts, and the class labels.

    `given` is a version's folder, or tfds:NAME[/CONFIG][:VERSION], which the library downloads into
    its own folder (TFDS_DATA_DIR) and prepares unless it is there.
    """
    place = str(given)
    library = require("tensorflow_datasets", "tensorflow-datasets", "datasets", f"--source={place}")
    try:
        if place.startswith(TFDS):
            builder = library.builder(place.removeprefix(TFDS))
            builder.download_and_prepare()
        else:
            builder = library.builder_from_directory(place)
        columns = dict(builder.info.features)
    except Exception as error:  # The library has no type of its own for most of them.
        raise DataError(f"{place}: tensorflow_datasets can't prepare it ({error})") from error
    kinds = (library.features.Image, library.features.Text, library.features.ClassLabel)
    images, texts, classes = (
        [name for name, found in columns.items() if isinstance(found, kind)] for kind in kinds
    )
    feature = options.feature or next(iter(images + texts), "")
    label = options.label or next(iter(classes), "")
    if feature not in images + texts or label not in classes:
        raise DataError(
            f"{place}: its columns are {', '.join(columns)}; expected images or texts, and class "
            "labels; name such columns with --feature and --label"
        )
    splits = {name: split.num_examples for name, split in builder.info.splits.items()}
    slices = _named_splits([name for name, count in splits.items() if count])
    if not splits.get(_TRAIN):
        raise DataError(f"{place}: has no split train with examples, only {', '.join(splits)}")
    if len(slices) == 1:
        test = sources.test_count(splits[_TRAIN], options, place)
        slices = {_TRAIN: f"train[{test}:]", "test": f"train[:{test}]"}
    is_image = feature in images

    def examples(part: str) -> sources.Examples:
        def read() -> Iterator[sources.Example]:
            rows = builder.as_dataset(
                split=part,
                decoders={feature: library.decode.SkipDecoding()} if is_image else None,
                # One file after the other: the order must be the same in each pass.
                read_config=library.ReadConfig(interleave_cycle_length=1),
            )
            for number, row in enumerate(rows.as_numpy_iterator()):
                content = bytes(row[feature])
                value = content if is_image else content.decode("utf-8", "replace")
                yield sources.Example(f"{place} {part} {number}", value, int(row[label]))

        return sources.Examples(builder.info.splits[part].num_examples, read)

    return Source(
        options.name or builder.name,
        sources.IMAGE if is_image else sources.TEXT,
        columns[label].num_classes,
        {split: examples(part) for split, part in slices.items()},
        tuple(columns[label].names or ()),
    )
