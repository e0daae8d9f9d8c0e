"""Answers of the TPU compiler as `tpu-training compile` keeps them, without compiling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_training.compile import session
from tpu_training.compile.answer import Answer, Compiled, Costs, Largest, Topology
from tpu_training.compile.session import answer_key, described_data, request
from tpu_training.data.manifest import DataFile, Split

GIB = 1 << 30
TPU = "v3-8"
EXAMPLES = 60_000


def write_data(folder: Path) -> None:
    """Write the description of a data set of 60,000 small images."""
    folder.mkdir(parents=True, exist_ok=True)
    described = described_data("28x28x1", 10, 0)
    split = Split(EXAMPLES, (DataFile("train-00000.tfrecord", EXAMPLES, 8, "0" * 64),))
    whole = dataclasses.replace(described, splits={"train": split, "test": split})
    (folder / "train-00000.tfrecord").write_bytes(b"examples")
    (folder / "manifest.json").write_text(whole.to_json(), encoding="utf-8")


def keep_answer(given: Mapping[str, Any], *, needed_gib: float, searched: bool = True) -> None:
    """Keep what the compiler would say of the MNIST network on a v3-8 of 15 GiB a replica."""
    fits = needed_gib <= 15
    compiled = Compiled(
        "train",
        Topology(TPU, "v3:2x2x1"),
        "libtpu 9",
        int(needed_gib * GIB),
        15 * GIB,
        (),
        (),
        Costs(1e9, 4.5e8, 0.0, (), 0, 0) if fits else None,
        None,
        None if fits else "Ran out of memory in memory space hbm",
    )
    largest = Largest(1024, 512) if searched else None
    part = int(given.get("global_batch_size", 256)) // 8
    answer = Answer(TPU, 8, part, 1, compiled, None, largest)
    spec = described_data("28x28x1", 10, 0).input_spec(0)
    session.save_entry(answer_key(request("mnist_cnn", given, spec), TPU), answer)
