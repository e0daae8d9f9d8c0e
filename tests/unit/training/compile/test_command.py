"""`tpu-training compile` around a compiler that plays Google's: memory grows with the batch."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tpu_training import compile_command
from tpu_training.__main__ import main
from tpu_training.cluster.machine import cache_folder
from tpu_training.compile import cached, session, table
from tpu_training.compile.answer import (
    Buffer,
    Compiled,
    Costs,
    Estimate,
    Padding,
    Program,
    Topology,
    Usage,
)
from tpu_training.compile.compiler import Libtpu, machine_problems
from tpu_training.compile.session import described_data, request
from tpu_training.data.manifest import DataFile, Manifest, Split
from tpu_training.errors import LoweringError
from tpu_training.models.spec import DataSpec

MIB = 1 << 20
IMAGES = ("--shape=224x224x3", "--classes=1000", "--examples=1281167")
RESNET = ("compile", "--model=resnet", "--depth=50", *IMAGES)
BATCHES = ("--global_batch_size=1024", "--evaluation_batch_size=1024")


BUFFER = Buffer(MIB * 300, MIB * 200, "bf16[128,56,56,64]{0,3}", "fusion.1", "conv", "own.py:7")


class Compiler:
    """Needs 100 MiB and 30 MiB an example of 15 GiB; above 12 GiB it computes results again."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bool]] = []
        self.limit = 15 << 30
        self.cycles = 130_000_000

    def __call__(
        self, program: Program, topology: Topology, *, full: bool, progress: Callable[[float], None]
    ) -> Compiled:
        self.asked.append((topology.accelerator_type, program.name, full))
        examples = int(program.hlo.partition(b"#")[2] or program.hlo)
        needed, limit = 100 * MIB + 30 * MIB * examples, self.limit
        costs = Costs(
            flops=24e9 * examples,
            hbm_bytes=270e6 * examples,
            padding_bytes=27e6 * examples,
            padding=(Padding(100, 104, 27_000_000, "resnet/conv", "own.py:7"),),
            collective_bytes=102_000_000,
            remat_instructions=int(needed > 12 << 30),
        )
        known = Compiled(
            program.name,
            topology,
            "libtpu 9",
            needed,
            limit,
            (Usage("weights", 100 * MIB), Usage("activations and temporaries", needed - 100 * MIB)),
            (BUFFER,),
            costs if needed <= limit else None,
            None,
            None if needed <= limit else "Ran out of memory in memory space hbm",
        )
        progress(1.0)
        estimate = Estimate(self.cycles, needed) if full else None
        return dataclasses.replace(known, estimate=estimate)


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    compiler = Compiler()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(session, "compile_program", compiler)
    monkeypatch.setattr(compile_command, "JobPrograms", Programs)
    monkeypatch.setattr("tpu_training.compile.compiler.machine_problems", lambda **_: [])
    return compiler


class Programs:
    """A program's HLO is the number of its examples."""

    def __init__(self, model: object, params: Any, manifest: object) -> None:
        self.params = params

    def train(self, replicas: int, part: int) -> Program:
        return Program("train", str(part).encode(), "hlo", replicas)

    def evaluation(self, replicas: int) -> Program:
        return Program("evaluate", b"16", "hlo", replicas)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_answer_has_memory_bounds_price_largest_batches_and_the_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)
    assert (code, err) == (0, "")
    for words in (
        "v3-8: 8 replicas, a batch of 1,024 in all, 128 a replica at a time",
        "3.85 GiB of 15.00 GiB a replica (26%): fits (compiled, libtpu 9)",
        "3.75 GiB  activations and temporaries",
        "300 MiB  bf16[128,56,56,64], 33% padding  conv  own.py:7",
        "at least 76.8 ms (bound, by HBM bandwidth)",
        "3.07 TFLOP, 34.6 GB of HBM traffic a replica; at most 65% of the chip's peak",
        "100 is padded to 104 (resnet/conv own.py:7)",
        "1,281,167 examples take at least 1 min 36 s (bound): $0.21 on demand",
        "on demand (us-central1, $8.00/h)",
        "evaluation  580 MiB of 15.00 GiB",
        "batch of 4,",
        "without computing anything twice",
        "139 ms a step, 7,389 examples/s (the compiler's cost model)",
        "Nothing was measured on a TPU.",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("flops", "said"), [(2.1e8, "210 MFLOP"), (3.07e12, "3.07 TFLOP"), (12, "12 FLOP")]
)
def test_a_small_quantity_is_not_a_fraction_of_a_large_unit(flops: float, said: str) -> None:
    assert table.metric(flops, "FLOP") == said


def test_quick_stops_after_memory_and_bounds(
    capsys: pytest.CaptureFixture[str], compiler: Compiler
) -> None:
    _, out, _ = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--quick")
    assert compiler.asked == [("v3-8", "train", False)]
    assert "at least 76.8 ms" in out
    assert "evaluation" not in out


def test_json_has_all_figures_and_what_each_of_them_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["format"] == 1
    assert set(document["versions"]) == {"tpu-stack-training", "tensorflow", "libtpu"}
    assert document["job"]["data"]["shape"] == [224, 224, 3]
    (answer,) = document["answers"]
    assert answer["bound"]["limit"] == "HBM bandwidth"
    assert answer["estimated_seconds"] == pytest.approx(0.139, abs=0.001)
    # 15 GiB hold 508 examples of 30 MiB next to 100 MiB, 12 GiB hold 406.
    assert 0.99 * 508 * 8 <= answer["largest"]["global_batch_size"] <= 508 * 8
    assert 0.99 * 406 * 8 <= answer["largest"]["without_recomputation"] <= 406 * 8
    assert answer["train"]["buffers"][0]["where"] == "own.py:7"
    assert answer["epoch"]["on_demand"] == pytest.approx(0.2136, abs=0.001)


def test_the_page_names_every_field_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[4] / "docs" / "sizing.md"
    text = page.read_text(encoding="utf-8")
    _, out, _ = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--json")
    document = json.loads(out)
    assert {name for name in fields(document) if f"`{name}`" not in text} == set()


def fields(value: Any) -> Iterator[str]:
    """Names of an object's fields, and of those within; parameters and parts are data."""
    if isinstance(value, list):
        for one in value:
            yield from fields(one)
    elif isinstance(value, dict):
        yield from value
        for name, one in value.items():
            if name not in ("job", "versions", "parts", "options"):
                yield from fields(one)


def test_an_estimate_below_the_bound_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], compiler: Compiler
) -> None:
    words = "below the bound: it counts no copies from HBM"
    assert words not in run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)[1]
    # A chip of v5e moves 819 GB a second and works at 1.5 GHz.
    compiler.cycles = 130_000
    _, out, _ = run(capsys, *RESNET, "--tpu=v5litepod-8", *BATCHES)
    assert words in out
    _, out, _ = run(capsys, *RESNET, "--tpu=v5litepod-8", *BATCHES, "--json")
    (answer,) = json.loads(out)["answers"]
    assert answer["below_bound"] is True
    assert answer["estimated_seconds"] < answer["bound"]["seconds"]


def test_a_batch_that_does_not_fit_ends_with_1_and_names_the_largest_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ("--global_batch_size=8192", "--evaluation_batch_size=1024")
    code, out, err = run(capsys, *RESNET, "--tpu=v3-8", *sizes)
    assert (code, err) == (1, "")
    assert "DOES NOT FIT" in out
    assert "batch of 4," in out
    assert "at least" not in out


def test_a_program_that_leaves_code_generation_no_room_does_not_fit(
    capsys: pytest.CaptureFixture[str], compiler: Compiler
) -> None:
    compiler.limit = (100 + 30 * 128 + 4) * MIB
    code, out, _ = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--json")
    (answer,) = json.loads(out)["answers"]
    assert (code, answer["fits"]) == (1, False)
    assert "4194304 are left" in answer["train"]["error"]
    assert answer["largest"]["global_batch_size"] == 127 * 8


def test_unsupported_operations_of_step_and_evaluation_are_named_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> Program:
        raise LoweringError(f"the {name} can't run on a TPU: own.py:7: AsString")

    monkeypatch.setattr(Programs, "train", lambda *_: refuse("training step"))
    monkeypatch.setattr(Programs, "evaluation", lambda *_: refuse("evaluation step"))
    code, out, err = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the training step can't run on a TPU: own.py:7" in err
    assert "the evaluation step can't run" in err


def test_types_are_compared_side_by_side_with_their_prices(
    capsys: pytest.CaptureFixture[str], compiler: Compiler
) -> None:
    compare = "--compare=v2-8,v3-8,v4-8,v6e-8"
    code, out, err = run(capsys, *RESNET, compare, *BATCHES)
    assert (code, err) == (0, "")
    head, *rows, _ = out.splitlines()
    assert head.split()[:7] == ["TPU", "replicas", "needs", "of", "fits", "step", "≥"]
    assert [row.split()[:2] for row in rows] == [
        ["v2-8", "8"],
        ["v3-8", "8"],
        ["v4-8", "4"],
        ["v6e-8", "8"],
    ]
    assert all("$" in row for row in rows)
    assert not any(full for _, _, full in compiler.asked)


def test_compiled_programs_are_read_from_the_cache(
    capsys: pytest.CaptureFixture[str], compiler: Compiler
) -> None:
    _, first, _ = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)
    asked = len(compiler.asked)
    _, second, _ = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--epochs=7", "--seed=3")
    assert (second, len(compiler.asked)) == (first, asked)
    run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--label_smoothing=0.2", "--quick")
    assert len(compiler.asked) == asked + 1


def test_other_programs_read_the_answer_without_compiling_or_tensorflow(
    capsys: pytest.CaptureFixture[str], compiler: Compiler
) -> None:
    manifest = described_data("224x224x3", 1000)
    given = {"depth": 50, "global_batch_size": 1024, "evaluation-batch-size": "1024"}
    assert cached("v3-8", "resnet", given, manifest) is None
    run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)
    asked = len(compiler.asked)
    answer = cached("v3-8", "resnet", {**given, "epochs": 90}, manifest)
    assert answer is not None
    assert answer.largest is not None
    assert answer.as_json(1000)["estimated_seconds"]
    assert cached("v2-8", "resnet", given, manifest) is None
    assert cached("v3-8", "resnet", {**given, "depth": 18}, manifest) is None
    assert len(compiler.asked) == asked


def test_a_quick_answer_does_not_replace_a_full_one(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)
    run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--quick")
    given = {"depth": 50, "global_batch_size": 1024, "evaluation_batch_size": 1024}
    answer = cached("v3-8", "resnet", given, described_data("224x224x3", 1000))
    assert answer is not None
    assert answer.train.estimate is not None


def test_reading_the_cache_loads_no_tensorflow() -> None:
    code = (
        "import sys; from tpu_training.compile import cached; "
        "from tpu_training.compile.session import described_data; "
        "cached('v3-8', 'resnet', {}, described_data('32x32x3', 10)); "
        "assert not {'tensorflow', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_own_models_answer_belongs_to_the_files_content(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    spec = described_data("8x8x1", 2).spec
    own.write_text("width = 1")
    before = request(str(own), {"width": 5}, spec).key("v3-8")
    assert request(str(own), {"width": "5.0"}, spec).key("v3-8") == before
    moved = own.rename(tmp_path / "moved.py")
    assert request(str(moved), {"width": 5}, spec).key("v3-8") == before
    moved.write_text("width = 2")
    assert request(str(moved), {"width": 5}, spec).key("v3-8") != before


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 0}', '{"format": 1, "program": "x"}'],
)
def test_a_damaged_entry_is_told_with_one_line_and_compiled_again(
    content: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    compiler: Compiler,
) -> None:
    arguments = (*RESNET, "--tpu=v3-8", *BATCHES, "--quick")
    run(capsys, *arguments)
    for entry in cache_folder("compile").glob("*.json"):
        entry.write_text(content)
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "fits" in out
    assert len(compiler.asked) == 2
    lines = [line for line in caplog.messages if "compiling again" in line]
    assert lines
    assert all("\n" not in line for line in lines)
    caplog.clear()
    assert run(capsys, *arguments)[1] == out
    assert not caplog.messages


def test_ctrl_c_right_after_an_answer_is_kept_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace = os.replace

    def interrupted(unfinished: str, path: Path) -> None:
        replace(unfinished, path)
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.save_entry("key", Compiled("p", Topology("a", "b"), "c", 1, 9, (), ()))


def test_a_folder_that_cannot_be_written_costs_no_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code, out, _ = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES, "--quick")
    assert code == 0
    assert "fits" in out


def test_writers_at_the_same_time_leave_a_whole_entry_and_no_other_file() -> None:
    def write(needed: int) -> None:
        for _ in range(100):
            session.save_entry("key", Compiled("p", Topology("a", "b"), "c", needed, 9, (), ()))

    writers = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found = session.load_entry("key", Compiled)
        assert found is None or found.needed_bytes in (1, 2)
    assert [path.name for path in cache_folder("compile").iterdir()] == ["key.json"]


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_the_vocabulary_says_how_many_tokens_a_language_model_chooses_among(task: str) -> None:
    parser, problems = argparse.ArgumentParser(), compile_command.Problems()
    compile_command.add_compile_arguments(parser)
    given = ["--model=bert", f"--task={task}", "--shape=128", "--vocabulary=300"]
    job = compile_command.build_compile_job(
        argparse.Namespace(**vars(parser.parse_args(given)), rest=[]), [], problems
    )
    problems.end()
    assert job
    assert job.request.spec == described_data("128", 300, 300).spec


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("compile", "--tpu=v3-8", "--model=bert", "--task=causal_lm", "--shape=128"),
            ["--shape=128 tokens needs the size of the vocabulary"],
        ),
        (
            ("compile", "--tpu=v3-8", "--model=bert", "--shape=128", "--vocabulary=300"),
            ["--shape=128 needs --classes"],
        ),
        (RESNET, ["--tpu is required"]),
        (
            (*RESNET, "--tpu=v3_8", "--compare=v9-1"),
            ["did you mean v3-8?", "--compare=v9-1: unknown"],
        ),
        ((*RESNET, "--tpu=v3-8", "--global_batch_size=1001"), ["v3-8: --global_batch_size=1001"]),
        (
            (*RESNET, "--tpu=v3-8", "--evaluation_batch_size=9"),
            ["evaluation_batch_size=9 is not"],
        ),
        (("compile", "--tpu=v3-8"), ["expected either --data", "--shape"]),
        ((*RESNET, "--data=d", "--tpu=v3-8"), ["expected either --data"]),
        (("compile", "--tpu=v3-8", "--shape=a"), ["--shape=a needs --classes"]),
        (("compile", "--tpu=v3-8", "--shape=a", "--classes=2"), ["--shape=a: expected"]),
        (("compile", "--tpu=v3-8", "--data=/nowhere"), ["--data=/nowhere: contains no manifest"]),
        (
            ("compile", "--tpu=x", "--dropuot=1", *IMAGES),
            ["--tpu=x: unknown", "--dropuot: unknown"],
        ),
        (
            ("compile", "--tpu=v3-8", "--stablehlo=f", "--model=resnet"),
            ["program; omit it, or omit --model"],
        ),
        (("compile", "--tpu=v3-8", "--stablehlo=f", "--epochs=2"), ["or omit --epochs=2"]),
        ((*RESNET, "--tpu=v3-8", "--examples=0"), ["--examples=0: must be at least 1"]),
        (("compile", "--tpu=v3-8", "--stablehlo=/nowhere"), ["--stablehlo=/nowhere: can't be"]),
    ],
)
def test_wrong_input_is_one_line_that_names_all_of_it(
    arguments: tuple[str, ...], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_a_program_in_a_file_is_compiled_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, compiler: Compiler
) -> None:
    file = tmp_path / "step.mlir"
    file.write_bytes(b"module @step attributes {mhlo.num_partitions = 8 : i32} {} #64")
    code, out, _ = run(capsys, "compile", "--tpu=v5litepod-8", f"--stablehlo={file}")
    assert code == 0
    assert "a program for 8 replicas" in out
    assert "batch" not in out
    asked = [("v5litepod-8", "step.mlir", full) for full in (False, True)]
    assert compiler.asked == asked


def test_a_program_in_a_file_is_compared_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, compiler: Compiler
) -> None:
    file = tmp_path / "step.mlir"
    file.write_bytes(b"module @step {} #64")
    code, out, _ = run(capsys, "compile", "--compare=v2-8,v3-8", f"--stablehlo={file}")
    assert code == 0
    assert [row.split()[0] for row in out.splitlines()[1:3]] == ["v2-8", "v3-8"]
    assert not any(full for _, _, full in compiler.asked)


def test_the_manifest_of_a_data_set_is_enough(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = (DataFile("train-0", 5000, 9, "0"),)
    splits = {"train": Split(5000, files)}
    spec = DataSpec("image", (0, 0, 3), "uint8", 10)
    manifest = Manifest("photos", spec, "encoded", splits)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    job = ("compile", "--model=resnet", "--tpu=v3-8", f"--data={tmp_path}", "--quick", *BATCHES)
    code, out, _ = run(capsys, *job, "--image_size=64", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["job"]["data"]["shape"] == [64, 64, 3]
    assert document["job"]["examples"] == 5000
    assert document["answers"][0]["epoch"]["seconds"] > 0
    code, _, err = run(capsys, *job)
    assert code == 2
    assert "--image_size=0: the images of the dataset photos have different sizes" in err


def test_a_machine_without_libtpu_is_reported_with_all_other_problems(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = ["libtpu is not installed"]
    monkeypatch.setattr("tpu_training.compile.compiler.machine_problems", lambda **_: lacking)
    assert run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)[::2] == (
        2,
        "training failed: libtpu is not installed\n",
    )
    _, _, err = run(capsys, *RESNET, "--tpu=v3_8", *BATCHES)
    assert "--tpu=v3_8: unknown TPU type" in err
    assert "libtpu is not installed" in err


def test_on_a_terminal_progress_is_a_bar_on_standard_error_that_is_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    code, out, _ = run(capsys, *RESNET, "--tpu=v3-8", *BATCHES)
    assert code == 0
    assert "\x1b" not in out
    assert "searching for the largest batch: 504 examples a replica" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_other_machines_than_linux_on_x86_64_are_told_where_to_run_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    (problem,) = machine_problems(lowers=False)
    assert "exists for Linux x86-64 only" in problem
    assert "docker run --platform linux/amd64" in problem


@pytest.mark.parametrize(
    ("libtpu", "tensorflow", "old"),
    [
        ("0.0.21", "2.21.0", True),
        ("0.0.21.1", "2.21.0", True),
        ("0.0.52", "2.21.0", False),
        ("0.0.21", "2.19.1", False),
        ("0.0.17", None, False),
    ],
)
def test_a_libtpu_that_cannot_read_this_tensorflows_programs_is_named(
    libtpu: str, tensorflow: str | None, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Libtpu(Path("libtpu.so"), libtpu)
    monkeypatch.setattr("tpu_training.compile.compiler.find_libtpu", lambda: here)
    monkeypatch.setattr(
        "tpu_training.compile.compiler.versions", lambda: {"tensorflow": tensorflow}
    )
    problems = list(machine_problems(lowers=False))
    assert bool(problems) == old
    assert not old or f"libtpu {libtpu} is older than TensorFlow {tensorflow}" in problems[0]


@pytest.mark.parametrize(
    ("tpu", "why"),
    [
        ("tpu7x-standard-4t", "where Google supports JAX and PyTorch"),
        (
            "ct6e-standard-4t:4x4",
            "because it drives only the chips of its own machine, one of 4",
        ),
    ],
)
def test_a_step_is_compiled_only_for_what_can_run_it(
    capsys: pytest.CaptureFixture[str], compiler: Compiler, tpu: str, why: str
) -> None:
    asked = (*RESNET, f"--tpu={tpu}", "--quick", *BATCHES)
    code, _, err = run(capsys, *asked)
    assert code == 2
    assert f"--backend=tensorflow: doesn't run on --tpu={tpu}, {why}; use --backend=jax" in err
    assert not compiler.asked
    code, out, err = run(capsys, *asked, "--backend=jax")
    assert (code, err) == (0, "")
    assert f"{tpu}: " in out
    assert compiler.asked == [(tpu, "train", False)]
