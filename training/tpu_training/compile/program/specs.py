"""Describe the data of a program without reading its examples. Loads no TensorFlow."""

import re

from tpu_training.data.manifest import RAW, TOKENS, Manifest, Split, stored_spec
from tpu_training.errors import InputError

_IMAGE = re.compile(r"[1-9]\d*x[1-9]\d*x[1-9]\d*")
_TEXT = re.compile(r"[1-9]\d*")


def described_data(shape: str, classes: int, vocabulary: int = 0) -> Manifest:
    """Return the manifest of a data set without files, which `--shape` and its kin describe.

    Args:
        shape: HEIGHTxWIDTHxCHANNELS of an image, or the number of a text's tokens.
        classes: The number of classes.
        vocabulary: The number of tokens in the vocabulary of a text; 0 for images.

    Raises:
        InputError: With every problem at once.
    """
    text, image = bool(_TEXT.fullmatch(shape)), bool(_IMAGE.fullmatch(shape))
    problems = []
    if not text and not image:
        problems.append(
            f"--shape={shape}: expected HEIGHTxWIDTHxCHANNELS of an image, such as 224x224x3, or "
            "the number of a text's tokens, such as 512"
        )
    if classes < 1:
        problems.append(f"--classes={classes}: must be at least 1")
    if text and vocabulary < 1:
        problems.append(
            f"--vocabulary={vocabulary}: a text of --shape={shape} tokens needs the size of its "
            "vocabulary, such as --vocabulary=30522"
        )
    if image and vocabulary:
        problems.append(f"--vocabulary={vocabulary}: images of --shape={shape} have none; omit it")
    if problems:
        raise InputError("; ".join(problems))
    sizes = tuple(int(size) for size in shape.split("x"))
    spec = stored_spec(TOKENS if text else RAW, sizes, classes, vocabulary)
    splits = {name: Split(0, ()) for name in ("train", "test")}
    return Manifest(f"--shape={shape}", spec, TOKENS if text else RAW, splits)
