"""Map the names of weights in a file to those of the model, as --init_map says."""

import re
from collections.abc import Iterable, Mapping

from tpu_training.errors import InputError
from tpu_training.models.model import some, split_patterns
from tpu_training.models.params import read_mapping

_FILES = (".yaml", ".yml", ".json")
# A replacement for names of the file that match a pattern.
_Rule = tuple[str, "re.Pattern[str]", str]


def map_names(text: str, names: Iterable[str]) -> dict[str, str]:
    """Return the model's name for each of the file's `names`, by the first rule that matches.

    A rule is THEIRS=OURS; what a `*` of THEIRS stands for takes the place of that `*` in OURS. A
    name without a rule is the same on both sides; an empty OURS leaves it out.

    Raises:
        InputError: A rule has another form, or matches none of `names`.
    """
    rules = [_rule(text, *pair) for pair in _pairs(text)]
    known, found, used = list(names), {}, set()
    for name in known:
        for written, pattern, ours in rules:
            if match := pattern.fullmatch(name):
                found[name] = _filled(ours, match.groups())
                used.add(written)
                break
        else:
            found[name] = name
    if unused := [written for written, *_ in rules if written not in used]:
        raise InputError(
            f"--init_map={text}: {', '.join(unused)} matches no weight of the file that no rule "
            f"before it took; it has {some(sorted(known))}"
        )
    return {theirs: ours for theirs, ours in found.items() if ours}


def _pairs(text: str) -> list[tuple[str, str]]:
    if text.endswith(_FILES):
        content: Mapping[str, object] = read_mapping(text, "--init_map")
        return [(str(theirs), str(ours or "")) for theirs, ours in content.items()]
    pairs = []
    for part in split_patterns(text):
        theirs, equals, ours = part.partition("=")
        if not (theirs and equals):
            raise InputError(
                f"--init_map={text}: {part!r} is not THEIRS=OURS, such as 'encoder/*=*', nor a "
                "file .yaml or .json with `THEIRS: OURS` lines"
            )
        pairs.append((theirs, ours))
    return pairs


def _rule(text: str, theirs: str, ours: str) -> _Rule:
    if ours.count("*") > theirs.count("*"):
        raise InputError(f"--init_map={text}: {ours} has more * than {theirs}")
    return theirs, re.compile("(.*)".join(map(re.escape, theirs.split("*")))), ours


def _filled(ours: str, parts: tuple[str, ...]) -> str:
    pieces = ours.split("*")
    taken = zip(parts, pieces[1:], strict=False)  # OURS may leave parts out.
    return pieces[0] + "".join(part + piece for part, piece in taken)
