"""Shapes of HLO with their layouts: logical size, size in a TPU's tiled memory, memory space."""

import math
import re
from dataclasses import dataclass
from functools import lru_cache

# type[dimensions]{minor to major:T(tile)(tile within a tile)S(memory space)}; dynamic dimensions
# are written <=N.
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\](?:\{([^{}]*)\})?")
_TILES = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE = re.compile(r"S\((\d+)\)")
_INDEX_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Shape:
    """An array's shape.

    Attributes:
        text: As HLO writes it.
        bits: Of one element.
        dims: The logical dimensions.
        tiled: The same dimensions as memory has them, tiles included.
        space: 0 for HBM; others are on the chip (1 is VMEM).
    """

    text: str
    bits: int
    dims: tuple[int, ...]
    tiled: tuple[int, ...]
    rest: int
    space: int

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """The size without tiles."""
        return -(-self.elements * self.bits // 8)

    @property
    def tiled_bytes(self) -> int:
        """The size in memory."""
        return -(-math.prod(self.tiled) * self.rest * self.bits // 8)

    def padded_dims(self) -> list[tuple[int, int, float]]:
        """Return (size, size in memory, share of the padding) of each dimension that grows."""
        grown = [(d, t) for d, t in zip(self.dims, self.tiled, strict=True) if t > d > 0]
        total = sum(math.log(t / d) for d, t in grown) + math.log(self.rest)
        return [(d, t, math.log(t / d) / total) for d, t in grown]


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """Return the arrays of a shape, a tuple's in their order."""
    return tuple(_parse_array(*match.group(0, 1, 2, 3)) for match in _ARRAY.finditer(text))


def without_comments(text: str) -> str:
    """Return HLO without the comments that number a long tuple's elements."""
    return _INDEX_COMMENT.sub("", text)


@lru_cache(maxsize=4096)
def _parse_array(text: str, kind: str, dims: str, layout: str | None) -> Shape:
    sizes = tuple(int(size.strip(" <=")) for size in dims.split(",") if size.strip())
    order, _, properties = (layout or "").partition(":")
    minor_first = [int(dim) for dim in order.split(",") if dim.strip()]
    tiles = _TILES.search(properties)
    space = _SPACE.search(properties)
    tiled, rest = _tile(sizes, minor_first, tiles[1] if tiles else "")
    return Shape(text, _bits(kind), sizes, tiled, rest, int(space[1]) if space else 0)


def _tile(
    sizes: tuple[int, ...], minor_first: list[int], tiles: str
) -> tuple[tuple[int, ...], int]:
    """Return the dimensions filled up to whole tiles, and what a tile has beyond their number.

    Only the first tile makes an array longer: those within it change the order of elements.
    """
    padded, rest = list(sizes), 1
    first = tiles[1:].split(")")[0]
    tile = [1 if side == "*" else int(side) for side in first.split(",") if side]
    for position, side in enumerate(reversed(tile)):
        if position < len(minor_first):
            dim = minor_first[position]
            padded[dim] = -(-padded[dim] // side) * side
        else:
            rest *= side
    return tuple(padded), rest


def _bits(kind: str) -> int:
    """Return an element's size: pred takes a byte, tokens nothing, others say it in their name."""
    if kind == "pred":
        return 8
    digits = re.search(r"\d+", kind)
    return int(digits[0]) if digits else 0
