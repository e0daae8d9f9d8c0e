"""The part of the report on classes: the accuracy of each, and which are taken for which."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tpu_training.monitoring.report.charts import confusion_chart


def classes_table(classes: Mapping[str, Any]) -> str:
    """Return a table of each class's test examples and accuracy, the worst class first."""
    names, confusion = _content(classes)
    if not names:
        return ""
    rows = sorted(zip(names, confusion, range(len(names)), strict=True), key=_accuracy)
    lines = [_row(name, counts, number, names) for name, counts, number in rows]
    head = "<tr><td>class</td><td>test examples</td><td>accuracy</td><td>mostly taken for</td></tr>"
    return f"<h2>Classes</h2><table>{head}{''.join(lines)}</table>"


def classes_picture(classes: Mapping[str, Any]) -> str:
    """Return the confusion matrix as a picture."""
    names, confusion = _content(classes)
    return confusion_chart("True class (rows) and predicted class", names, confusion)


def _content(classes: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[Sequence[int]]]:
    return classes.get("class_names", ()), classes.get("confusion", ())


def _accuracy(row: tuple[str, Sequence[int], int]) -> float:
    _, counts, number = row
    return counts[number] / max(1, sum(counts))


def _row(name: str, counts: Sequence[int], number: int, names: Sequence[str]) -> str:
    examples = sum(counts)
    accuracy = f"{counts[number] / examples:.2%}" if examples else ""
    wrong = [(count, other) for other, count in enumerate(counts) if count and other != number]
    worst = max(wrong, default=None)
    mistaken = f"{names[worst[1]]} ({worst[0]})" if worst else ""
    cells = (name, examples, accuracy, mistaken)
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"
