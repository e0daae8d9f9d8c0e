"""A picture of pictures, each framed by whether it was recognised, with its classes below."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

_RIGHT, _WRONG, _TRUE = (0, 150, 60), (210, 30, 30), (90, 90, 90)
_BORDER, _GAP = 2, 8
_FONT_SIZE = 11
# Two lines.
_CAPTION = 28
# Small pictures are enlarged to about this many pixels.
_SMALLEST_SIDE = 56


def draw_grid(
    images: npt.NDArray[np.generic],
    labels: npt.NDArray[np.generic],
    classes: npt.NDArray[np.generic],
    names: Sequence[str] = (),
) -> bytes:
    """Return a PNG of all `images` (count, height, width, channels of bytes).

    Below each is the predicted class and, where that is wrong, the true one in a second line; by
    their `names` where there are some, shortened to the picture's width.
    """
    from matplotlib import get_data_path
    from PIL import Image, ImageDraw
    from PIL.ImageFont import truetype

    factor = max(1, math.ceil(_SMALLEST_SIDE / images.shape[2]))
    height, width = images.shape[1] * factor, images.shape[2] * factor
    framed_height, framed_width = height + 2 * _BORDER, width + 2 * _BORDER
    columns = math.ceil(math.sqrt(len(images)) * 1.4)
    rows = math.ceil(len(images) / columns)
    size = (columns * (framed_width + _GAP), rows * (framed_height + _CAPTION + _GAP))
    # matplotlib brings the font along; Pillow's own may be one of pixels.
    font = truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", _FONT_SIZE)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for position, image in enumerate(images.astype(np.uint8)):
        left = position % columns * (framed_width + _GAP)
        top = position // columns * (framed_height + _CAPTION + _GAP)
        label, found = int(labels[position]), int(classes[position])
        colour = _RIGHT if label == found else _WRONG
        sheet.paste(colour, (left, top, left + framed_width, top + framed_height))
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        enlarged = picture.resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (left + _BORDER, top + _BORDER))
        lines = [(found, colour), (label, _TRUE)] if label != found else [(found, colour)]
        for line, (number, ink) in enumerate(lines):
            text = names[number] if names else str(number)
            while len(text) > 2 and draw.textlength(text, font) > framed_width + _GAP - 2:
                text = f"{text.removesuffix('…')[:-1]}…"
            place = (left, top + framed_height + line * _CAPTION // 2)
            draw.text(place, text, ink, font)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    return content.getvalue()
