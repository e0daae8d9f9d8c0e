"""The code keeps the form that tools/form.yaml asks for."""

from __future__ import annotations

import pytest
import yaml
from form import BARS, File, duplicates, measure, single_importers, tracked, unlinked, worse

SIX_LINES = "\n".join(f"value_{number} = {number}" for number in range(6))


@pytest.mark.slow
def test_no_figure_of_the_code_is_worse_than_its_bar() -> None:
    files, bars = tracked(), yaml.safe_load(BARS.read_text(encoding="utf-8"))
    assert [*worse(measure(files), bars), *unlinked(files, bars["flows"])] == []


def test_a_figure_beyond_its_bar_and_a_room_without_a_ceiling_are_named() -> None:
    figures = {"files": 3, "comment lines, %": 9.0, "rooms": {"core": 10, "agent": 20}}
    bars = {
        "most": {"files": 2},
        "least": {"comment lines, %": 18},
        "rooms": {"agent": {"lines": 19}},
        "flows": {"a price": {"most": 1, "files": ["a.py", "b.py"]}},
    }
    assert worse(figures, bars) == [
        "files is 3, the bar is at most 2",
        "comment lines, % is 9.0, the bar is at least 18",
        "core/ has 10 lines, its ceiling is 0",
        "agent/ has 20 lines, its ceiling is 19",
        "a price takes 2 files, the bar is at most 1",
    ]


def test_a_module_that_one_other_imports_is_found_by_either_form_of_import() -> None:
    files = [
        File("infra/price.py", ""),
        File("infra/zone.py", ""),
        File("core/tpu_core/http.py", "import infra.zone"),
        File("infra/__main__.py", "from infra import price, zone\nfrom tpu_core.http import call"),
    ]
    assert single_importers(files) == ["infra.price", "tpu_core.http"]


def test_the_same_six_lines_are_one_duplicate_however_long_they_are() -> None:
    seven = f"{SIX_LINES}\nvalue_6 = 6"
    files = [File("a.py", f"import os\n{seven}"), File("b.py", f"# A comment\n{seven}")]
    assert duplicates(files) == [("a.py:2", "b.py:2")]


def test_five_lines_are_no_duplicate() -> None:
    five = SIX_LINES.rpartition("\n")[0]
    assert duplicates([File("a.py", five), File("b.py", five)]) == []


def test_comments_and_docstrings_count_as_words() -> None:
    text = '"""What it is.\n\nMore.\n"""\n\n# Why.\nvalue = "# not one"  # nor is this\n'
    assert File("a.py", text).words() == 5


def test_a_flow_names_files_that_exist_and_that_imports_link() -> None:
    files = [File("infra/a.py", "from infra import b"), File("infra/b.py", ""), File("c.py", "")]
    files.append(File("d.py", ""))
    flow = {"most": 4, "files": ["infra/a.py", "infra/b.py", "c.py", {"runs": "d.py"}, "gone.py"]}
    assert unlinked(files, {"a price": flow}) == [
        "a price: no import links c.py to the files before it",
        "a price: gone.py doesn't exist. Name the file that took its place",
    ]
