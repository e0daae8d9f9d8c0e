"""Read images with a class for each pixel: folders `images` and `masks` with files of one name.

A mask is a PNG whose grey level is the class; 255 is not counted, as in PASCAL VOC's.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.source import (
    IMAGE,
    Options,
    Source,
    pick,
    refuse_outside,
    split_at_random,
)
from tpu_training.data.manifest import NO_CLASS
from tpu_training.errors import DataError, require
from tpu_training.models.spec import MASK

_IMAGES, _MASKS = "images", "masks"


def matches(path: Path) -> bool:
    """Return whether `path` has the folders `images` and `masks`."""
    return (path / _IMAGES).is_dir() and (path / _MASKS).is_dir()


def load(path: Path, options: Options) -> Source:
    """Read all pairs, which must have one size, and split them at random."""
    pictures = [file for file in sorted((path / _IMAGES).iterdir()) if file.is_file()]
    if not pictures:
        raise DataError(f"{path / _IMAGES}: contains no image")
    images: list[npt.NDArray[np.uint8]] = []
    masks: list[npt.NDArray[np.uint8]] = []
    for picture in pictures:
        masked = path / _MASKS / f"{picture.stem}.png"
        refuse_outside((picture, masked), path)
        image, mask = _read(picture, colour=True), _read(masked, colour=False)
        if mask.shape != image.shape[:2]:
            raise DataError(
                f"{picture}: has {image.shape[:2]} pixels, its mask {mask.shape}; expected one size"
            )
        if images and image.shape != images[0].shape:
            raise DataError(
                f"{picture}: has the shape {image.shape}, the first image {images[0].shape}; "
                "resize images and masks to one size"
            )
        images.append(image)
        masks.append(mask)
    stored = np.stack(masks)
    classes = 1 + int(stored[stored != NO_CLASS].max(initial=0))
    splits = {
        split: pick(
            order,
            lambda position: str(pictures[position]),
            images.__getitem__,
            stored,
        )
        for split, order in split_at_random(len(images), options, str(path)).items()
    }
    return Source(options.name or path.resolve().name, IMAGE, classes, splits, (), MASK)


def _read(path: Path, *, colour: bool) -> npt.NDArray[np.uint8]:
    """Return (height, width, 3), or the levels (height, width) of a mask."""
    pillow = require("PIL.Image", "pillow", "plots", "reading masks")
    try:
        with pillow.open(path) as picture:
            # A mask with a palette has its classes as indices.
            mode = "RGB" if colour else picture.mode if picture.mode in ("L", "P") else "L"
            return np.asarray(picture.convert(mode), np.uint8)
    except OSError as error:
        raise DataError(f"{path}: can't be read as an image ({error})") from error
