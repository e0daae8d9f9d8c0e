from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import __main__ as bench
from bench.__main__ import ROWS, Row
from bench.measure import Result

FAST = Result("fast: requests", 100, "1/s")
SLOW = Result("slow: against the bare program", 2.0, "ratio", goal=1.3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.json"


@pytest.fixture
def run(path: Path) -> Callable[..., tuple[int, str]]:
    """Runs fake rows; returns the exit code and what was printed."""

    def call(**rows: Row) -> tuple[int, str]:
        output = io.StringIO()
        code = bench.run(rows, path, Console(file=output, width=100))
        return code, output.getvalue()

    return call


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def row(*results: Result, seconds: float = 1) -> Row:
    return Row(seconds, lambda: list(results))


def interrupted() -> list[Result]:
    raise KeyboardInterrupt


def test_a_row_is_on_disk_and_on_screen_before_the_next_one_starts(path: Path) -> None:
    output, seen = io.StringIO(), []

    def look() -> list[Result]:
        seen.append((read(path), output.getvalue()))
        return [SLOW]

    console = Console(file=output, width=100)
    bench.run({"fast": row(FAST), "slow": Row(1, look)}, path, console)

    (content, text), *_ = seen
    assert [result["name"] for result in content["results"]] == [FAST.name]
    assert content["complete"] is False
    assert FAST.name in text
    assert SLOW.name not in text


def test_a_whole_run_is_marked_as_complete(run: Callable[..., tuple[int, str]], path: Path) -> None:
    code, _ = run(fast=row(FAST))

    assert code == 0
    assert read(path)["complete"] is True
    assert read(path)["results"] == [
        {
            "name": "fast: requests",
            "value": 100,
            "unit": "1/s",
            "goal": None,
            "better": "lower",
            "holds": True,
        }
    ]


def test_an_interrupted_run_keeps_what_it_has(
    run: Callable[..., tuple[int, str]], path: Path
) -> None:
    code, text = run(fast=row(FAST), slow=Row(1, interrupted))

    assert code == 130
    assert text.endswith("interrupted; bench/results.json keeps the rows above\n")
    assert [result["name"] for result in read(path)["results"]] == [FAST.name]
    assert read(path)["complete"] is False


def test_a_missed_goal_is_named_at_the_end(run: Callable[..., tuple[int, str]]) -> None:
    code, text = run(slow=row(SLOW), fast=row(FAST))

    assert code == 1
    _, _, end = text.partition("1 goal missed:")
    assert SLOW.name in end
    assert FAST.name not in end


def test_it_says_how_long_a_row_takes_before_it_starts(
    run: Callable[..., tuple[int, str]],
) -> None:
    _, text = run(fast=row(FAST, seconds=40), slow=row(seconds=300), late=Row(20, interrupted))

    assert text.startswith("3 rows, about 6 min in all\nmeasuring fast, which takes about 40 s …\n")
    assert "measuring slow, which takes about 5 min …" in text
    assert "measuring late, which takes about 20 s …" in text


def test_the_rows_that_are_named_run_once_each_in_that_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    for name in ROWS:
        monkeypatch.setitem(ROWS, name, row(Result(f"{name}: seconds", 1, "s")))

    assert bench.main(["request", "preview", "request"]) == 0

    results = read(tmp_path / "results.json")["results"]
    assert [result["name"] for result in results] == ["request: seconds", "preview: seconds"]


def test_unknown_rows_get_one_message_that_lists_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["preview", "previw", "starup"])

    assert capsys.readouterr().err.splitlines()[-1] == (
        "make bench: error: no row is called previw or starup; the rows are preview, "
        "slices, request, criticalpath, jobs, first_job, first_answer, uvx, dashboard, "
        "kill_to_step, killpoints, agent, month, cloud, reads, shuffle, input, pipeline, packing, "
        "endpoint, startup, second_start, checkpoint, loops, save, keras, rates, compile, "
        "compiled, steps"
    )


def test_each_row_is_measured_by_a_function_of_its_name() -> None:
    sources = [path.read_text(encoding="utf-8") for path in bench.FOLDER.glob("*.py")]
    functions = {name for text in sources for name in re.findall(r"^def measure_(\w+)", text, re.M)}
    assert functions == set(ROWS)
