"""A grid of pictures, each framed by whether it was recognised, its classes in small digits."""

import math

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

# Digits of 3 x 5 dots, a row in three bits, from the top.
_DIGITS = {
    "0": (7, 5, 5, 5, 7),
    "1": (2, 6, 2, 2, 7),
    "2": (7, 1, 7, 4, 7),
    "3": (7, 1, 7, 1, 7),
    "4": (5, 5, 7, 1, 1),
    "5": (7, 4, 7, 1, 7),
    "6": (7, 4, 7, 5, 7),
    "7": (7, 1, 1, 2, 2),
    "8": (7, 5, 7, 5, 7),
    "9": (7, 5, 7, 1, 7),
    " ": (0, 0, 0, 0, 0),
}
_WIDTH, _HEIGHT, _DOT = 3, 5, 2
_RIGHT, _WRONG, _TRUE = (0, 150, 60), (210, 30, 30), (90, 90, 90)
_BORDER, _GAP = 2, 6
_CAPTION = _HEIGHT * _DOT + 4
# Small pictures are enlarged to about this many pixels.
_SMALLEST_SIDE = 56


def draw_grid(
    images: npt.NDArray[np.generic],
    labels: npt.NDArray[np.generic],
    classes: npt.NDArray[np.generic],
) -> Pixels:
    """Return (height, width, 3) with every picture; below it the predicted class and, where that
    is wrong, the true one."""
    tiles = [
        _tile(_colour(image), int(label), int(found))
        for image, label, found in zip(images, labels, classes, strict=True)
    ]
    columns = math.ceil(math.sqrt(len(tiles)) * 1.4)
    rows = math.ceil(len(tiles) / columns)
    height, width, _ = tiles[0].shape
    sheet = np.full((rows * (height + _GAP), columns * (width + _GAP), 3), 255, np.uint8)
    for position, tile in enumerate(tiles):
        top, left = position // columns * (height + _GAP), position % columns * (width + _GAP)
        sheet[top : top + height, left : left + width] = tile
    return sheet


def _colour(image: npt.NDArray[np.generic]) -> Pixels:
    """Three channels of bytes, enlarged by a whole factor."""
    pixels = np.asarray(image).astype(np.uint8)
    pixels = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, :3]
    factor = max(1, math.ceil(_SMALLEST_SIDE / pixels.shape[1]))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _tile(image: Pixels, label: int, found: int) -> Pixels:
    right = label == found
    height, width, _ = image.shape
    tile = np.full((height + 2 * _BORDER + _CAPTION, width + 2 * _BORDER, 3), 255, np.uint8)
    tile[: height + 2 * _BORDER] = _RIGHT if right else _WRONG
    tile[_BORDER : _BORDER + height, _BORDER : _BORDER + width] = image
    end = _write(tile, str(found), 0, _RIGHT if right else _WRONG)
    if not right:
        _write(tile, str(label), end + 3 * _DOT, _TRUE)
    return tile


def _write(tile: Pixels, text: str, left: int, colour: tuple[int, int, int]) -> int:
    """Write `text` into the caption; return where it ends. What does not fit is left out."""
    top = tile.shape[0] - _HEIGHT * _DOT
    for character in text:
        bits = np.array([[row >> 2 - x & 1 for x in range(_WIDTH)] for row in _DIGITS[character]])
        dots = bits.repeat(_DOT, axis=0).repeat(_DOT, axis=1).astype(bool)
        if left + dots.shape[1] > tile.shape[1]:
            break
        tile[top:, left : left + dots.shape[1]][dots] = colour
        left += (_WIDTH + 1) * _DOT
    return left
