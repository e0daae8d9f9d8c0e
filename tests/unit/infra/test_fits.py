"""A preview says where the job is known not to fit into the stack's TPU."""

import sys
from pathlib import Path

import pulumi
import pytest

from tests.compiled import keep_answer, write_data
from tpu_infra import advice
from tpu_infra.settings import StackSettings
from tpu_infra.settings.parse import parse

from .conftest import config

ARGS = ("--global_batch_size=512",)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    heard: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", heard.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_data(tmp_path / "data")
    return heard


def settings(data: str | None = "data") -> StackSettings:
    training = {"args": list(ARGS), **({"data": data} if data else {})}
    tpu = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pjrt"}
    return parse(config(training=training, tpu=tpu), "test")


@pulumi.runtime.test  # type: ignore[untyped-decorator]
def previewed(root: Path, data: str | None = "data") -> None:
    advice.report_fit(settings(data), root)


def test_a_job_that_does_not_fit_is_a_warning_with_the_cure(
    warnings: list[str], tmp_path: Path
) -> None:
    keep_answer({"global_batch_size": "512"}, needed_gib=16)
    previewed(tmp_path)
    (warning,) = warnings
    assert warning.startswith("training.args: a step of batch 512 does not fit v3-8: ")
    assert "The largest --global_batch_size that fits v3-8 is 8192" in warning


@pytest.mark.parametrize("known", [4.0, None])
def test_preview_is_silent_about_a_job_that_fits_or_was_never_compiled(
    known: float | None, warnings: list[str], tmp_path: Path
) -> None:
    keep_answer({"global_batch_size": "1024"}, needed_gib=16)
    if known:
        keep_answer({"global_batch_size": "512"}, needed_gib=known)
    assert advice.misfit(settings(), tmp_path) is None


@pytest.mark.parametrize("data", ["data", None])
def test_trainer_is_not_asked_without_compiled_answers_or_local_data(
    data: str | None, warnings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if data is None:
        keep_answer({}, needed_gib=16)
    monkeypatch.setattr(advice, "misfit", lambda *_: pytest.fail("the trainer was asked"))
    previewed(tmp_path, data)
    assert warnings == []


def test_training_package_that_fails_or_is_missing_does_not_fail_a_preview(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert advice.misfit(settings(), tmp_path) is None
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert advice.misfit(settings(), tmp_path) is None
