"""What a preview says about the data set that the training reads, and what new data changes."""

from __future__ import annotations

from pathlib import Path

import pulumi
import pytest

from tpu_core.google import Json
from tpu_infra import advice
from tpu_infra.checks.software import check_args, job_name
from tpu_infra.settings.parse import parse

from .conftest import Run, config, context_of

MANIFEST = "gs://a-bucket/data/manifest.json"


class Bucket:
    """Answers every request with one status, as Cloud Storage does."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[str] = []

    def call(self, _method: str, url: str, _body: None) -> tuple[int, Json]:
        self.asked.append(url)
        return self.status, {}


@pulumi.runtime.test  # type: ignore[untyped-decorator]
def previewed(training: dict[str, object]) -> None:
    advice.report_data(parse(config(training=training), "test"), "a-bucket")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (200, None),
        # Google's answer for a missing object, and for a bucket that is still to be made.
        (404, f"there is no {MANIFEST}"),
        # And for a missing object where the caller may not list the bucket's objects.
        (403, f"{MANIFEST} can't be read (403)"),
    ],
)
def test_a_data_set_is_looked_up_in_the_bucket(
    status: int, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(status)
    monkeypatch.setattr(advice, "users_client", lambda: bucket)
    said = advice.missing_data("a-bucket")
    assert said is why is None or f"(not set), and {why}. Without data" in str(said)
    assert bucket.asked == [
        "https://storage.googleapis.com/storage/v1/b/a-bucket/o/data%2Fmanifest.json?fields=name"
    ]


def test_without_credentials_the_preview_says_that_it_could_not_look(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "users_client", lambda: None)
    previewed({})
    (warning,) = warnings
    assert warning.startswith(f"training.data: (not set), and {MANIFEST} can't be checked without")


def test_a_preview_warns_of_a_training_without_data(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "users_client", lambda: Bucket(404))
    previewed({})
    (warning,) = warnings
    assert f"there is no {MANIFEST}. Without data the training ends at once" in warning
    assert "tpu-training data convert" in warning


@pytest.mark.parametrize("training", [{"data": ".demo/data"}, {"args": ["--data=gs://other/d"]}])
def test_google_is_not_asked_where_the_settings_name_the_data(
    training: dict[str, object], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "users_client", lambda: pytest.fail("Google was asked"))
    previewed(training)
    assert warnings == []


def test_other_data_is_another_job_and_the_same_data_is_the_same(run: Run, root: Path) -> None:
    settings = config(training={"data": ".demo/data", "job": "mnist"})
    manifest = root / ".demo" / "data" / "manifest.json"
    jobs = []
    for content in ('{"first": 1}', '{"second": 2}', '{"first": 1}'):
        manifest.write_text(content, encoding="utf-8")
        engine, outputs = run(settings)
        job = engine.one("Instance")["metadata"]["training-job"]
        assert outputs["job_url"] == f"{outputs['bucket_url']}/jobs/{job}"
        jobs.append(job)
    first, second, again = jobs
    assert first == again != second
    assert first.rpartition("-")[0] == second.rpartition("-")[0] == "mnist"


def test_a_job_on_data_that_is_in_the_bucket_already_keeps_its_name(root: Path) -> None:
    assert job_name(parse(config(training={"job": "mnist"}), "test"), root) == "mnist"


def test_other_arguments_are_another_job_and_the_same_ones_are_the_same(root: Path) -> None:
    def job(*args: str) -> str:
        return job_name(parse(config(training={"args": list(args)}), "test"), root)

    assert job("--epochs=2") == job("--epochs=2") != job("--epochs=3")
    assert len({job(), job("--seed=1"), job("--seed=1", "--epochs=2")}) == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--learning_rat=0.003"], "--learning_rat: unknown; did you mean --learning_rate"),
        (["--epochs=many", "--warmup_fraction=2"], "--epochs=many"),
        (["--epochs=many", "--warmup_fraction=2"], "--warmup_fraction=2"),
        (["--model=renset"], "--model=renset: unknown"),
        (["--model=net.py"], "names the file net.py, which the VM doesn't have"),
        (["--model", "net.py"], "names the file net.py, which the VM doesn't have"),
        (["--config=rates.yaml"], "names the file rates.yaml"),
    ],
)
def test_arguments_that_would_end_the_training_are_refused(
    args: list[str], said: str, root: Path
) -> None:
    settings = parse(config(training={"args": args}), "test")
    (problem,) = check_args(settings, context_of(settings, root))
    assert said in str(problem)


@pytest.mark.parametrize(
    ("args", "jobs"),
    [
        (["--model=resnet", "--learning_rate=0.1", "--data=gs://other/data"], False),
        (["--model=net.py"], True),
    ],
)
def test_arguments_that_the_trainer_takes_are_no_problem(
    args: list[str], jobs: bool, root: Path
) -> None:
    settings = parse(config(training={"args": args}, jobs={"enabled": jobs}), "test")
    assert not list(check_args(settings, context_of(settings, root)))
