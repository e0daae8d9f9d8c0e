from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpu_training.__main__ import main

JOB = ["train", "--data=/data", "--model-dir=/model"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.err.count("\n") == 1
    return code, captured.err.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "MODE"),
        (["fly"], "fly"),
        (["train"], "--data, --model-dir"),
        ([*JOB, "--lerning_rate=1"], "did you mean --learning_rate?"),
        ([*JOB, "--tpus=x"], "did you mean --tpu?"),
        ([*JOB, "--epochs", "2"], "--epochs: expected --name=value"),
        ([*JOB, "--epochs=x", "--seed=-1"], "--epochs=x: expected a number; --seed=-1"),
        ([*JOB, "--model=mnist"], "did you mean mnist_cnn?"),
        ([*JOB, "--foo", "--sed=1"], "--foo: expected --name=value; --sed: unknown"),
        ([*JOB, "--tpu=My_TPU"], "My_TPU"),
        ([*JOB, "--config=/nowhere.yaml"], "/nowhere.yaml"),
        (["data"], "ACTION"),
        (["data", "convert"], "--source, --output"),
        (["data", "convert", "--source=/nowhere", "--output=/nowhere/x"], "--source=/nowhere"),
        (["data", "convert", "--source=s", "--output=o", "--nme=x"], "--nme=x"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, message = run(capsys, *arguments)
    assert code == 2
    what = "data convert" if arguments[:2] == ["data", "convert"] else "training"
    assert message.startswith(f"{what} failed: ")
    assert words in message


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.yaml", "epochs: [1]", "epochs (in --config)=[1]: expected a number"),
        ("p.yaml", "epochs: 2\nsed: 1", "sed (in --config): unknown; did you mean --seed?"),
        ("p.yaml", "model: mnist", "--model=mnist: unknown; did you mean mnist_cnn?"),
        ("p.yaml", "- 1", "expected `name: value` lines"),
        ("p.yaml", "a: b: c", "is not YAML"),
        ("p.json", "{", "is not JSON"),
    ],
)
def test_a_wrong_configuration_file_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    code, message = run(capsys, *JOB, f"--config={tmp_path / name}")
    assert code == 2
    assert words in message


def test_help_and_wrong_input_load_no_tensorflow() -> None:
    script = """
import sys
from tpu_training.__main__ import main
try:
    main(["train-and-evaluate", "--help"])
except SystemExit as error:
    assert error.code == 0
assert main(["train", "--data=x", "--model-dir=y", "--nope=1"]) == 2
assert "tensorflow" not in sys.modules and "numpy" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--global_batch_size=256" in done.stdout
    assert "75 interrupted" in done.stdout


@pytest.mark.parametrize("mode", ["train", "evaluate", "lr-range-test", "compile"])
def test_help_of_every_command_that_takes_parameters_lists_those_of_the_model(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([mode, "--model=bert", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  --hidden_size=") for line in lines)
    assert any(line.startswith("  --learning_rate=") for line in lines)


def test_the_signal_for_a_profile_does_not_end_a_job_that_does_not_train_yet() -> None:
    code = """
import os, signal, sys
from types import SimpleNamespace
from tpu_training import __main__ as program
well = SimpleNamespace(summary="well")
program.start.run_job = lambda *_, **__: os.kill(os.getpid(), signal.SIGUSR1) or well
sys.exit(program.main(["train", "--data=d", "--model-dir=m"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "training finished well\n")


def test_an_endpoint_where_nobody_listens_is_a_failure_that_names_the_cure(
    capsys: pytest.CaptureFixture[str], bars: Path, tmp_path: Path
) -> None:
    code, message = run(
        capsys,
        "train",
        f"--data={bars}",
        f"--model-dir={tmp_path}",
        "--tpu=grpc://127.0.0.1:1",
        "--connect_tries=1",
        "--connect_interval=0.01",
    )
    assert code == 1
    assert "no gRPC server answers at grpc://127.0.0.1:1 (connection refused)" in message
    assert "firewall" in message
