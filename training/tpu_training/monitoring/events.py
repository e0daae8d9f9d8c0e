"""Reads back what a training wrote for TensorBoard; needs no TensorBoard."""

from collections.abc import Iterator

import tensorflow as tf

# step -> value
Series = dict[int, float]


def read_series(logdir: str) -> dict[str, Series]:
    """Return every scalar by its tag, in the order of steps.

    Where a killed training was started again, what the later start wrote for a step counts.
    """
    series: dict[str, Series] = {}
    for event in _events(logdir):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name in ("scalars", "") and value.tensor.dtype:
                array = tf.make_ndarray(value.tensor)
                if array.size == 1:
                    series.setdefault(value.tag, {})[event.step] = float(array)
    return {tag: dict(sorted(values.items())) for tag, values in sorted(series.items())}


def _events(logdir: str) -> Iterator[tf.compat.v1.Event]:
    """All events, file by file in the order of their start; what is half written ends a file."""
    names = tf.io.gfile.listdir(logdir) if tf.io.gfile.isdir(logdir) else []
    for name in sorted(name for name in names if name.startswith("events.out.")):
        records = tf.data.TFRecordDataset(f"{logdir}/{name}")
        try:
            for record in records.as_numpy_iterator():
                yield tf.compat.v1.Event.FromString(record)
        except tf.errors.DataLossError:
            continue
