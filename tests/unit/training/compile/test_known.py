"""What other programs read of a job that was compiled: an answer at once, or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compiled import keep_answer, write_data
from tpu_training.__main__ import main
from tpu_training.compile import cached, cached_job, misfit, read_manifest, session as asked
from tpu_training.compile.session import described_data

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
    assert main(["compile", "--cached", "--json", *JOB]) == 1
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["misfit"].startswith("a step of batch 512 does not fit v3-8")
    keep_answer(GIVEN, needed_gib=4)
    assert main(["compile", "--cached", *JOB]) == 0
    assert "batch of 8,192 fits" in capsys.readouterr().out


def test_an_unknown_job_names_the_cure_or_gives_an_empty_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compile", "--cached", *JOB]) == 1
    assert "no answer is stored for this training; omit --cached" in capsys.readouterr().err
    assert main(["compile", "--cached", "--json", *JOB]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] == []


def test_a_program_in_a_file_is_refused_with_all_other_problems(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compile", "--cached", "--stablehlo=step.mlir", "--tpu=v9-8"]) == 2
    said = capsys.readouterr().err
    assert "omit --stablehlo" in said
    assert "--tpu=v9-8" in said


@pytest.mark.parametrize(("needed", "searched"), [(16, False), (16, True), (4, False)])
def test_a_misfit_is_one_sentence_with_its_cure(needed: int, searched: bool) -> None:
    keep_answer(GIVEN, needed_gib=needed, searched=searched)
    answer = cached("v3-8", "mnist_cnn", GIVEN, described_data("28x28x1", 10))
    assert answer
    said = misfit(answer)
    if needed < 15:
        assert said is None
        return
    assert said
    assert said.startswith(
        "a step of batch 512 does not fit v3-8: a replica has 15.00 GiB and it needs 16.00 GiB "
        "(compiled, libtpu 9). "
    )
    cure = "The largest --global_batch_size that fits v3-8 is" if searched else "Lower --global_ba"
    assert cure in said


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
