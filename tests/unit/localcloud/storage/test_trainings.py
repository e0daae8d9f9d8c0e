"""All that the training package does with gs://, against the local cloud, in one life of a job."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcloud.core.call import Principal
from localcloud.core.cloud import Cloud, Fault
from tests.unit.localcloud.storage.conftest import Bucket

pytestmark = pytest.mark.training

ROOT = Path(__file__).parents[4]
TRAINER = "user:trainer@example.com"
DAY_SECONDS = 86400
# What the error message asks for.
READ_AND_WRITE = ("roles/storage.objectUser", "roles/storage.legacyBucketReader")
READ = ("roles/storage.objectViewer", "roles/storage.legacyBucketReader")

# Arguments -> exit code, standard output, standard error.
Training = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def training(
    client_environment: dict[str, str], cloud: Cloud, tmp_path: Path
) -> Iterator[Training]:
    """Runs commands of the package as TRAINER in a folder of its own, all in one process."""
    token = cloud.token(Principal(TRAINER), lifetime=DAY_SECONDS)
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("trainings.py"))],
        env=client_environment | {"PYTHONPATH": str(ROOT), "GOOGLE_AUTH_TOKEN_FOR_TESTING": token},
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout

        def run(*arguments: str) -> tuple[int, str, str]:
            assert process.stdin
            print(json.dumps(arguments), file=process.stdin, flush=True)
            assert process.stdout
            code, out, err = json.loads(process.stdout.readline())
            return code, out, err

        yield run
        process.stdin.close()


def grant(bucket: Bucket, *roles: str) -> None:
    """Give TRAINER these roles on the bucket, and no others."""
    policy = bucket.api.get(f"{bucket.url}/iam")
    others = [binding for binding in policy["bindings"] if TRAINER not in binding["members"]]
    own = [{"role": role, "members": [TRAINER]} for role in roles]
    bucket.api.call("PUT", f"{bucket.url}/iam", policy | {"bindings": others + own})


def test_a_job_lives_in_a_bucket_from_its_data_to_its_predictions(
    bucket: Bucket, training: Training, cloud: Cloud, tmp_path: Path
) -> None:
    """And what may not be written there is said, with the bucket, and spares what is there."""
    root = f"gs://{bucket.name}"
    job = [f"--data={root}/data", f"--model-dir={root}/job", "--global_batch_size=128"]
    job += ["--evaluation_batch_size=128", "--steps_per_loop=5", "--checkpoint_interval=5"]

    def done(*arguments: str) -> str:
        code, out, err = training(*arguments)
        assert code == 0, err
        return out

    grant(bucket, *READ_AND_WRITE)
    parts = ["files", "folders", "records", "checkpoints", "events"]
    assert done("tensorflow", f"{root}/one").split() == parts
    done("data", "convert", "--source=digits", "--output=data")
    for path in (tmp_path / "data").iterdir():
        bucket.put(f"data/{path.name}", path.read_bytes())
    assert "checksums verified" in done("data", "inspect", f"--data={root}/data")
    out = done("train-and-evaluate", *job, "--epochs=1", "--evaluation_interval=5")
    assert f"checkpoint: saved {root}/job/checkpoints/ckpt-10" in out
    metrics = json.loads(bucket.read("job/metrics.json"))
    assert (metrics["validation_examples"], metrics["test_examples"]) == (144, 360)
    assert f"job/best/ckpt-{metrics['best_step']}.index" in bucket.names(prefix="job/best/")
    assert json.loads(bucket.read("job/report.json"))["metrics"] == metrics
    _what_may_not_be_written_names_the_bucket(bucket, training, job, tmp_path)
    # Goes on where it was, and a bucket that takes nothing any more spares what is in it.
    cloud.faults.add(Fault(method="storage.objects.insert", status=403, skip=10))
    code, out, err = training("train", *job, "--epochs=20")
    assert code == 1
    assert f"checkpoint: restored {root}/job/checkpoints/ckpt-10" in out
    assert "has no access to the bucket" in err
    assert root in err
    cloud.faults.clear()
    assert "job/checkpoints/ckpt-10.index" in bucket.names(prefix="job/checkpoints/")
    done("export", f"--model-dir={root}/job", f"--output={root}/exported", "--best")
    assert bucket.names(prefix="exported/")
    done("lr-range-test", *job, "--sweep-steps=20", "--no-plot")
    assert bucket.read("job/lr_range_test/curve.csv").startswith(b"step,learning_rate,loss")


def _what_may_not_be_written_names_the_bucket(
    bucket: Bucket, training: Training, job: list[str], tmp_path: Path
) -> None:
    """For one who may only read it, and for one who may not even do that."""
    root = f"gs://{bucket.name}"
    before = bucket.names()
    other = [argument.replace("/job", "/other") for argument in job]
    commands = (
        (READ, ["train", *other, "--epochs=1"]),
        (READ, ["train", *job, "--epochs=20"]),
        (READ, ["lr-range-test", *other, "--no-plot"]),
        (READ, ["export", f"--model-dir={root}/job", f"--output={root}/exported"]),
        ((), ["train", *job, "--epochs=20"]),
    )
    for roles, arguments in commands:
        grant(bucket, *roles)
        code, out, err = training(*arguments)
        assert code == 1, arguments
        assert err.count("\n") == 1, arguments
        assert re.search(rf"[\[(]{root}[/:]", err), err
        assert "tpu_core" not in err, "no line of ours is the user's"
        assert "has no access to the bucket" in err, arguments
        assert "does not have storage." in err, arguments
        assert "roles/storage.objectUser" in err, arguments
        assert "progress" not in out, arguments
        assert "sweep" not in out, arguments
    assert bucket.names() == before
    grant(bucket, *READ_AND_WRITE)
    (tmp_path / "file").write_text("")
    code, _, err = training("train", "--data=data", "--model-dir=file")
    assert (code, "file is a file; choose another directory" in err) == (2, True)
