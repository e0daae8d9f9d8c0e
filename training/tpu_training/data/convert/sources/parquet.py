"""Read Parquet files with a column of images or texts and one of labels."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_training.data.convert.source import (
    IMAGE,
    TEXT,
    Examples,
    Feature,
    Labels,
    Options,
    Source,
    check_labels,
    number_labels,
    orders,
    pick,
    rows_of,
)
from tpu_training.data.convert.sources.split_files import find_splits, holds
from tpu_training.errors import DataError
from tpu_training.errors.extras import require

_SUFFIX = ".parquet"
_FEATURES = ("image", "img", "text", "sentence", "content")
_LABELS = ("label", "labels", "class", "target")


def matches(path: Path) -> bool:
    """Return whether `path` is a Parquet file or a folder with some."""
    return holds(path, _SUFFIX)


def load(path: Path, options: Options) -> Source:
    """Read files such as train-00000.parquet and test-00000.parquet, or split all rows.

    Images are files' contents, or structs with a field `bytes` as Hugging Face writes them. Names
    of classes come from its description of the columns.
    """
    library = require("pyarrow.parquet", "pyarrow", "datasets", f"--source={path}")
    files = find_splits(path, _SUFFIX)
    schema = _schema(library, files["train"][0])
    feature = _column(path, schema, "--feature", options.feature, _FEATURES)
    label = _column(path, schema, "--label", options.label, _LABELS)
    tables = {split: _table(library, paths, [feature, label]) for split, paths in files.items()}
    counts = {split: len(table) for split, table in tables.items()}
    if empty := [split for split, count in counts.items() if not count]:
        raise DataError(f"{path}: the split {empty[0]} is empty")
    labels = _labels(path, tables, label, _names(schema, label))
    is_image = not _is_text(schema.field(feature).type)
    splits: dict[str, Examples] = {}
    for split, (source, order) in orders(counts, options, str(path)).items():
        place = rows_of(f"{path} {source}")
        read = _reader(tables[source].column(feature), place, is_image)
        splits[split] = pick(order, place, read, labels.splits[source])
    name = options.name or path.resolve().stem
    return Source(name, IMAGE if is_image else TEXT, labels.classes, splits, labels.names)


def _schema(library: Any, path: Path) -> Any:
    try:
        return library.read_schema(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is no Parquet file ({error})") from error


def _table(library: Any, paths: Sequence[Path], columns: list[str]) -> Any:
    tables = []
    for path in paths:
        try:
            tables.append(library.read_table(path, columns=columns).select(columns))
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{path}: can't be read ({error})") from error
    try:
        return require("pyarrow", "pyarrow", "datasets", "Parquet").concat_tables(tables)
    except ValueError as error:
        raise DataError(f"{paths[0].parent}: the files have other columns ({error})") from error


def _column(path: Path, schema: Any, flag: str, given: str | None, usual: Sequence[str]) -> str:
    names = ", ".join(schema.names)
    if given:
        if given not in schema.names:
            raise DataError(f"{path}: there is no column {given}, only {names}")
        return given
    found = [name for name in usual if name in schema.names]
    if not found:
        raise DataError(f"{path}: its columns are {names}; name one with {flag}")
    return found[0]


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string")


def _names(schema: Any, label: str) -> tuple[str, ...]:
    """Return the names of the classes that Hugging Face's library noted in the file."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])
        return tuple(map(str, noted["info"]["features"][label]["names"]))
    except (KeyError, ValueError, TypeError):
        return ()


def _labels(path: Path, tables: dict[str, Any], column: str, names: tuple[str, ...]) -> Labels:
    written = {split: table.column(column).to_pylist() for split, table in tables.items()}
    if names and all(isinstance(label, int) for each in written.values() for label in each):
        numbers = {split: np.array(each, np.int64) for split, each in written.items()}
        check_labels(numbers, len(names), f"{path} {column}")
        return Labels(len(names), numbers, names)
    texts = {
        split: ["" if label is None else str(label) for label in each]
        for split, each in written.items()
    }
    return number_labels(texts, lambda split, row: f"{path} {split} row {row}, {column}")


def _reader(column: Any, place: Callable[[int], str], is_image: bool) -> Callable[[int], Feature]:
    def text(row: int) -> str:
        return str(column[row].as_py() or "")

    def image(row: int) -> bytes:
        value = column[row].as_py()
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes):
            raise DataError(
                f"{place(row)}: expected a text, an image file's content, or a struct with the "
                f"field bytes, found {type(value).__name__}"
            )
        return content

    return image if is_image else text
