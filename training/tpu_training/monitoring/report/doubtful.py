"""The part of the report on training examples whose labels are probably wrong."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_HEAD = ("example", "label", "predicted", "loss", "probability of label", "of predicted", "")


def doubtful_table(doubtful: Mapping[str, Any]) -> str:
    """Return a table of the training examples of the highest loss."""
    if not doubtful.get("examples"):
        return ""
    names = doubtful.get("class_names", ())
    rows = "".join(_row(_cells(example, names)) for example in doubtful["examples"])
    return (
        "<h2>Labels in doubt</h2><p class='sub'>The training examples of the highest loss, by "
        f"their place in the files of the training set. {doubtful['probably_wrong']} of all "
        f"{doubtful['of']} are probably labelled wrongly: another class is as probable as it is "
        f"for the examples of that class.</p><table>{_row(_HEAD)}{rows}</table>"
    )


def _cells(example: Mapping[str, Any], names: Sequence[str]) -> tuple[object, ...]:
    label, predicted = (
        names[example[key]] if names else example[key] for key in ("label", "predicted")
    )
    return (
        example["example"],
        label,
        predicted,
        example["loss"],
        f"{example['probability_of_label']:.1%}",
        f"{example['probability_of_predicted']:.1%}",
        "probably wrong" if example["probably_wrong"] else "",
    )


def _row(cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"
