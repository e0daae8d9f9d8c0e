"""A recorded demo becomes a picture that shows what was run, and folds what is many."""

from __future__ import annotations

from xml.etree import ElementTree

from recording import COLUMNS, Line, lines, picture

from tests.unit.structure.modules import ROOT

OUTPUT = """Script started on 2026-11-26
● pulumi up, stack local
  + storage:Bucket bucket created (0.07s)
  + storage:BucketObject data/a created (0.21s)
  + storage:BucketObject data/b created (0.27s)
● training on the VM
\x1b[2Ktraining ━━━━ 0/? vm is booting; --verbose shows what it writes
\x1b[2Ktraining ╸━━━  10/703 loss 3.500 · 273 ex/s
\x1b[2K  a line of the trainer
training ━━━━ 703/703 loss 0.070 · 895 ex/s
\x1b[2Ktraining ━━━━ 703/703 loss 0.070 · 895 ex/s
test accuracy       98.90%
"""


def texts(rows: list[Line]) -> list[str]:
    return [row.texts[-1] for row in rows]


def test_objects_are_folded_and_the_progress_changes_in_its_row() -> None:
    rows = lines(OUTPUT)
    assert texts(rows) == [
        "● pulumi up, stack local",
        "  + storage:BucketObject data/a created (0.21s)",
        "  + storage:Bucket bucket created (0.07s)",
        "  … 1 more",
        "● training on the VM",
        "  a line of the trainer",
        "training ━━━━ 703/703 loss 0.070 · 895 ex/s",
        "test accuracy       98.90%",
    ]
    assert rows[6].texts[0] == "training ╸━━━  10/703 loss 3.500 · 273 ex/s"


def test_the_picture_shows_each_row_and_cuts_what_is_too_long() -> None:
    drawn = ElementTree.fromstring(picture([*lines(OUTPUT), Line(("x" * 200,))]))
    shown = [text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "test accuracy       98.90%" in shown
    assert max(map(len, shown)) == COLUMNS


def test_the_picture_in_the_pages_is_small_and_fetches_nothing() -> None:
    recorded = ROOT / "docs" / "demo.svg"
    assert recorded.stat().st_size < 30_000
    assert "href" not in recorded.read_text(encoding="utf-8")
