"""The part of a data set's description that a model needs."""

from dataclasses import dataclass

from tpu_training.errors import InputError

# What a data set holds besides the features of each example: a class, a yes or no for each of its
# names, numbers, a class for each token, a class for each pixel, or nothing.
CLASS, LABELS, NUMBERS = "class", "labels", "numbers"
TOKEN_CLASSES, MASK, NOTHING = "token_classes", "mask", "nothing"
TARGETS = (CLASS, LABELS, NUMBERS, TOKEN_CLASSES, MASK, NOTHING)
# The class of a token or pixel that is not counted.
IGNORED = -1


@dataclass(frozen=True)
class DataSpec:
    """The features of an example, and the number of classes.

    Attributes:
        kind: `image` or `text`.
        shape: The shape of the input pipeline's features: (height, width, channels) or (length,).
        dtype: Their type: uint8 for images, int32 for token ids, in which 0 is padding.
        classes: The number of classes; labels are 0 to `classes` - 1. For targets of `labels` and
            `numbers`, how many there are.
        vocabulary: The number of tokens; ids are 0 to `vocabulary` - 1.
        targets: What the data set holds to learn, one of TARGETS.
        outputs: The shape of a model's output for an example; () stands for (classes,).
        causal: Whether no output may depend on later tokens.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    classes: int
    vocabulary: int = 0
    targets: str = CLASS
    outputs: tuple[int, ...] = ()
    causal: bool = False

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a model's output for an example."""
        return self.outputs or (self.classes,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of an example's targets."""
        shapes = {
            LABELS: (self.classes,),
            NUMBERS: (self.classes,),
            TOKEN_CLASSES: self.shape,
            MASK: self.shape[:2],
        }
        return shapes.get(self.targets, ())

    @property
    def target_dtype(self) -> str:
        """Their type."""
        return "float32" if self.targets == NUMBERS else "int32"


def image_shape(spec: DataSpec) -> tuple[int, int, int]:
    """Return (height, width, channels). Raises InputError if the data set has no images."""
    if spec.kind != "image":
        raise InputError(
            f"--model takes images, but the data set holds {spec.kind}; choose another"
        )
    height, width, channels = spec.shape
    return height, width, channels


def text_length(spec: DataSpec) -> int:
    """Return the tokens per example. Raises InputError if the data set has no texts."""
    if spec.kind != "text":
        raise InputError(f"--model takes text, but the data set holds {spec.kind}s; choose another")
    (length,) = spec.shape
    return length


def flat_outputs(spec: DataSpec, model: str) -> int:
    """Return how many numbers `model` gives for an example. Raises InputError for more axes."""
    if len(spec.output_shape) != 1:
        raise InputError(
            f"--model={model} gives one row of numbers for an example, but the task wants the "
            f"shape {spec.output_shape}; choose another model, or write one in a file"
        )
    return spec.output_shape[0]
