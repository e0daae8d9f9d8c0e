"""Read scikit-learn's handwritten digits: 1,797 small images that need no download."""

import numpy as np

from tpu_training.data.convert.source import IMAGE, Options, Source, pick
from tpu_training.errors import require

_TEST_SHARE = 5
_MAXIMUM = 16


def load(options: Options) -> Source:
    """Scale the 8x8 digits to 24x24 and pad them to MNIST's 28x28; every fifth is for testing."""
    digits = require("sklearn.datasets", "scikit-learn", "digits", "--source=digits").load_digits()
    bytes_8x8 = (digits.images * (255 / _MAXIMUM)).round().astype(np.uint8)
    images = np.pad(bytes_8x8.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    images, labels = images[..., np.newaxis], digits.target.astype(np.int64)
    test = np.arange(len(labels)) % _TEST_SHARE == 0
    splits = {}
    for split, chosen in (("train", ~test), ("test", test)):
        order = np.flatnonzero(chosen)
        splits[split] = pick(order, str, images.__getitem__, labels)
    return Source(options.name or "digits", IMAGE, 10, splits)
