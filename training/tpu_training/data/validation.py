"""Hold out a part of the training examples for validation: whole files, and a part of one.

Files are read whole, and examples were dealt to them in turn. Whether a record is held out depends
on the seed, its file's number and its number in the file, and on nothing that another start of the
job may change: hosts, replicas, cache.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tpu_training.data.manifest import TRAIN, VALIDATION, Manifest, Split
from tpu_training.errors import InputError
from tpu_training.models.params import Params

if TYPE_CHECKING:
    from tpu_training.data.data_set import DataSet

# What evaluations before the end take where the dataset has no split of its own for them.
_DEFAULT_FRACTION = 0.1


def with_fraction(params: Params, manifest: Manifest) -> Params:
    """Return `params` with the part of the training examples to hold out; 0 for none.

    Raises:
        InputError: The dataset has a split `validation` already, a part would be empty, or there
            is patience without evaluations.
    """
    if params.patience and not params.evaluation_interval:
        raise InputError(
            f"--patience={params.patience}: counts evaluations during the training, but there are "
            "none; also pass --evaluation_interval=STEPS"
        )
    return dataclasses.replace(params, validation_fraction=_fraction(params, manifest))


def _fraction(params: Params, manifest: Manifest) -> float:
    """Return the part to hold out: as given, a tenth where one is needed, or 0."""
    fraction = params.validation_fraction
    if VALIDATION in manifest.splits:
        if fraction:
            raise InputError(
                f"--validation_fraction={fraction:g}: the dataset {manifest.name} has a split "
                f"{VALIDATION} of {manifest.split(VALIDATION).examples} examples; omit it to use "
                "that split"
            )
        return 0.0
    if not fraction and params.evaluation_interval:
        fraction = _DEFAULT_FRACTION
    if fraction:
        _count(manifest.split(TRAIN).examples, fraction, manifest.name)
    return fraction


def hold_out(data: "DataSet", params: Params) -> "DataSet":
    """Return `data` with the fraction of its training examples as the split `validation`."""
    fraction = params.validation_fraction
    if not fraction:
        return data
    # A function has no numbered records, and another epoch may give others.
    if data.function:
        raise InputError(
            f"{data.function.function.place}: evaluations during the training "
            f"(--evaluation_interval, --validation_fraction) need examples; give some for the "
            f"split {VALIDATION}, because those to train with have no files to hold out from"
        )
    train = data.manifest.split(TRAIN)
    held = _chosen(train, _count(train.examples, fraction, data.manifest.name), params.seed)
    splits = {
        **data.manifest.splits,
        TRAIN: _part(train, [f.examples - len(held.get(f.name, ())) for f in train.files]),
        VALIDATION: _part(train, [len(held.get(f.name, ())) for f in train.files]),
    }
    manifest = dataclasses.replace(data.manifest, splits=splits)
    return dataclasses.replace(data, manifest=manifest, held=held)


def _count(examples: int, fraction: float, name: str) -> int:
    """Return how many examples `fraction` is. Raises InputError for none or all of them."""
    count = round(examples * fraction)
    if not 0 < count < examples:
        raise InputError(
            f"--validation_fraction={fraction:g}: splits the {examples} training examples of "
            f"{name} into {examples - count} for training and {count} for validation; both need "
            "at least one"
        )
    return count


def _chosen(train: Split, count: int, seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return the numbers of `count` records by file: the files, and records, of least hash."""
    chosen: dict[str, npt.NDArray[np.int64]] = {}
    for number in np.argsort(_hashes(seed, len(train.files), len(train.files))).tolist():
        file = train.files[number]
        if taken := min(count, file.examples):
            order = np.argsort(_hashes(seed, number, file.examples))
            chosen[file.name] = np.sort(order[:taken])
            count -= taken
    return chosen


def _hashes(seed: int, file: int, records: int) -> npt.NDArray[np.uint64]:
    """Return a random number for each record.

    Raw bits are the same in all versions of NumPy (NEP 19), unlike what its generators make of
    them.
    """
    return np.random.Philox(key=np.array([seed, file], np.uint64)).random_raw(records)


def _part(split: Split, counts: list[int]) -> Split:
    """Return `split` with so many examples of each file, less the files without any."""
    files = tuple(
        dataclasses.replace(file, examples=count)
        for file, count in zip(split.files, counts, strict=True)
        if count
    )
    return dataclasses.replace(split, examples=sum(counts), files=files)
