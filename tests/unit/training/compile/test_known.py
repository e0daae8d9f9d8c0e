"""`tpu-training compile --cached`: an answer at once, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compiled import keep_answer, write_data
from tpu_training.__main__ import main
from tpu_training.compile import cached_job, read_manifest
from tpu_training.compile import session as asked

JOB = ("--tpu=v3-8", "--shape=28x28x1", "--classes=10", "--global_batch_size=512")
GIVEN = {"global_batch_size": "512"}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_known_answer_is_printed_and_its_exit_code_says_whether_it_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keep_answer(GIVEN, needed_gib=16)
    assert main(["compile", "--cached", *JOB]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
    keep_answer(GIVEN, needed_gib=4)
    assert main(["compile", "--cached", *JOB]) == 0
    assert "batch of 8,192 fits" in capsys.readouterr().out


def test_json_has_the_misfit_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    keep_answer(GIVEN, needed_gib=16, searched=False)
    assert main(["compile", "--cached", "--json", *JOB]) == 1
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["misfit"] == (
        "a step of batch 512 does not fit v3-8: a replica has 15.00 GiB and it needs 16.00 GiB "
        "(compiled, libtpu 9). Lower --global_batch_size"
    )


def test_an_unknown_job_names_the_cure_or_gives_an_empty_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compile", "--cached", *JOB]) == 1
    assert capsys.readouterr().err == (
        "nothing is known of this job on v3-8: leave out --cached to compile it\n"
    )
    assert main(["compile", "--cached", "--json", *JOB]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] == []


def test_flags_that_exclude_cached_are_refused_with_all_other_problems(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compile", "--cached", "--quick", "--hlo=step.pb", "--tpu=v9-8", "odd"]) == 2
    said = capsys.readouterr().err
    for part in ("without --hlo", "without --quick", "--tpu=v9-8", "odd: expected --name=value"):
        assert part in said


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["--global_batch_size=512"], True),
        (["--global-batch-size=512", "--learning_rate=0.1", "--model=mnist_cnn"], True),
        (["--global_batch_size=256"], False),
        (["--global_batch_size=512", "--data=gs://another/data"], False),
        (["--global_batch_size=512", "--config=missing.yaml"], False),
        (["--global_batch_size=512", "odd"], False),
    ],
)
def test_the_arguments_of_a_stack_find_the_answer_of_the_same_job(
    arguments: list[str], known: bool, tmp_path: Path
) -> None:
    keep_answer(GIVEN, needed_gib=16)
    write_data(tmp_path / "data")
    manifest = read_manifest(str(tmp_path / "data"))
    assert (cached_job("v3-8", arguments, manifest) is not None) == known


@pytest.mark.parametrize("folder", ["models", "tasks", "loop", "compile"])
def test_a_change_of_the_sources_invalidates_cached_answers(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(asked, "_PACKAGE", tmp_path)
    (tmp_path / folder).mkdir()
    before = asked.sources_digest.__wrapped__()
    (tmp_path / folder / "one.py").write_text("", encoding="utf-8")
    assert asked.sources_digest.__wrapped__() != before
