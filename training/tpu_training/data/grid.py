"""A picture of a data set: the first images of each class."""

import io
import itertools

import numpy as np
import numpy.typing as npt

from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.data.manifest import ENCODED
from tpu_training.data.preprocessing import ops
from tpu_training.data.preprocessing.parse import parse_examples
from tpu_training.errors import InputError, require_plots
from tpu_training.models.spec import CLASS

_ROWS, _COLUMNS = 10, 10
# Classes that have not shown up by then stay empty.
_MOST_READ = 20_000
_BATCH = 256
_INCHES = 0.9


def draw_grid(data: DataSet, path: str) -> None:
    """Draw up to ten training images of each of the first ten classes into a PNG file.

    Raises InputError for texts, without matplotlib and where `path` can't be written.
    """
    manifest = data.manifest
    if manifest.spec.kind != "image" or manifest.spec.targets != CLASS:
        raise InputError(f"--grid={path}: the data set {manifest.name} holds no images of classes")
    require_plots(f"--grid={path}")
    from matplotlib.figure import Figure

    images = _first_images(data)
    rows = len(images)
    figure = Figure(figsize=(_INCHES * (_COLUMNS + 2), _INCHES * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False)
    for label, row in images.items():
        name = manifest.class_names[label] if manifest.class_names else str(label)
        for axis, image in itertools.zip_longest(axes[label], row):
            axis.set_axis_off()
            if image is not None:
                axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
        axes[label][0].text(
            -0.1, 0.5, name, transform=axes[label][0].transAxes, ha="right", va="center"
        )
    picture = io.BytesIO()
    figure.savefig(picture, dpi=100, format="png")
    files.write_bytes(path, picture.getvalue())


def _first_images(data: DataSet) -> dict[int, list[npt.NDArray[np.uint8]]]:
    """Up to ten images of each of the first ten classes."""
    manifest = data.manifest
    found: dict[int, list[npt.NDArray[np.uint8]]] = {
        label: [] for label in range(min(_ROWS, manifest.spec.classes))
    }
    for serialised in data.shards("train").read_all().take(_MOST_READ).batch(_BATCH):
        features, labels = parse_examples(serialised, manifest)
        for feature, label in zip(features, labels.numpy().tolist(), strict=True):
            if len(found.get(label, [None] * _COLUMNS)) < _COLUMNS:
                encoded = manifest.encoding == ENCODED
                image = ops.decode(feature, manifest.spec.shape[2]) if encoded else feature
                found[label].append(image.numpy())
        if all(len(images) == _COLUMNS for images in found.values()):
            break
    return found
