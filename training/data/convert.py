"""`data convert`: write a data set as sharded TFRecord files with a manifest."""

import hashlib
import logging
import math
import os
from pathlib import Path

from training.data.manifest import FILE_NAME, RAW, DataFile, Manifest, Split, stored_spec
from training.data.sources import LabelledImages, Source, load_source
from training.errors import InputError

# Shards of about this size are read in parallel without many small requests to the bucket.
_SHARD_BYTES = 16 << 20

logger = logging.getLogger(__name__)


def convert(source: str, output: str, name: str | None) -> Manifest:
    """Convert `source` (a directory of IDX files, or `digits`) into the directory `output`.

    Everything is read and checked before the first file is written; the manifest comes last, so a
    directory with a manifest is complete.
    """
    data = load_source(source, name)
    directory = Path(output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE_NAME).unlink(missing_ok=True)
        splits = {split: _write_split(directory, data, split) for split in data.splits}
        height, width = data.splits["train"].images.shape[1:]
        spec = stored_spec(RAW, (height, width, 1), data.classes)
        manifest = Manifest(data.name, spec, RAW, splits)
        (directory / FILE_NAME).write_text(manifest.to_json())
    except OSError as error:
        raise InputError(f"--output={output}: can't be written ({error})") from error
    counts = ", ".join(f"{split.examples} {name}" for name, split in splits.items())
    logger.info("data: wrote %s (%s) to %s", data.name, counts, directory)
    return manifest


def _write_split(directory: Path, data: Source, split: str) -> Split:
    content = data.splits[split]
    shards = max(1, math.ceil(content.images.nbytes / _SHARD_BYTES))
    files = []
    for shard in range(shards):
        path = directory / f"{data.name}-{split}-{shard:05d}-of-{shards:05d}.tfrecord"
        part = LabelledImages(content.images[shard::shards], content.labels[shard::shards])
        _write_shard(path, part)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files.append(DataFile(path.name, len(part.labels), path.stat().st_size, digest))
    return Split(len(content.labels), tuple(files))


def _write_shard(path: Path, part: LabelledImages) -> None:
    """Write under another name first, so that a file with the right name is whole."""
    # TensorFlow takes seconds to load: only now, when the input is known to be good.
    import tensorflow as tf

    unfinished = path.with_suffix(".unfinished")
    with tf.io.TFRecordWriter(str(unfinished)) as writer:
        for image, label in zip(part.images, part.labels, strict=True):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    os.replace(unfinished, path)
