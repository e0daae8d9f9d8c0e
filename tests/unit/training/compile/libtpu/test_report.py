"""What a dump says of a program: memory, buffers, costs, the compiler's own estimate."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tests.unit.training.compile.libtpu.conftest import FEATURES, RECORDED, WEIGHTS
from tpu_training.compile.answer import Compiled, Costs, Program, Topology
from tpu_training.compile.compiler import Dump, parse_allocations, read_estimate, read_report
from tpu_training.compile.pjrt import is_out_of_memory, limit_in

V3 = Topology("v3-8", "v3:2x2x1")
LIMIT = 16624107520
# Sums over the recorded buffer assignment, but for what is thread-local: six times 1,024 bytes,
# which libtpu's memory-usage-report has among its totals.
NEEDED = {"0.0.52": 2430976 - 6 * 1024, "0.0.21": 1382400 - 6 * 1024}


@pytest.fixture
def report(dump: Dump, step: Program) -> Compiled:
    return read_report(dump, step, V3, "libtpu", LIMIT)


def test_memory_needed_is_that_of_all_allocations_in_hbm(report: Compiled, dump: Dump) -> None:
    assert report.needed_bytes == NEEDED[dump.folder.name]
    assert report.fits


def test_memory_is_listed_by_what_uses_it(report: Compiled) -> None:
    used = {usage.kind: usage.bytes for usage in report.usage}
    # 100 examples take the tiles of 104.
    assert (used["weights"], used["input"]) == (WEIGHTS.bytes, 104 * 256 * 4)
    assert sum(used.values()) == report.needed_bytes


def test_arguments_without_a_description_are_other(dump: Dump, step: Program) -> None:
    unnamed = dataclasses.replace(step, arguments=())
    report = read_report(dump, unnamed, V3, "libtpu", LIMIT)
    assert {usage.kind for usage in report.usage} == {"other", "activations and temporaries"}


def test_the_largest_buffers_have_names_sizes_and_lines(report: Compiled) -> None:
    sizes = [buffer.bytes for buffer in report.buffers]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) <= 10
    by_name = {buffer.what: buffer for buffer in report.buffers}
    features = by_name["features"]
    assert (features.bytes, features.unpadded_bytes) == (104 * 256 * 4, FEATURES.bytes)
    assert any(
        buffer.op.startswith("layer/") and buffer.where.startswith("own.py:1")
        for buffer in report.buffers
    )


def test_buffers_on_the_chip_do_not_count_as_needed_memory() -> None:
    text = (
        "BufferAssignment:\n"
        "allocation 0: size 1024, color 1, page 0, preallocated-temp:\n"
        " value: <1 a @1> (size=1024,offset=0): f32[8]{0:T(256)S(1)}\n"
        "allocation 1: size 2048, color 0, page 0, parameter 3, shape |f32[8]| at ShapeIndex {}:\n"
        " value: <2 b @0> (size=2048,offset=0): f32[8]{0:T(512)}\n"
    )
    (allocation,) = parse_allocations(text)
    assert (allocation.bytes, allocation.parameter) == (2048, 3)
    assert [value.name for value in allocation.values] == ["b"]


def test_arguments_of_a_called_computation_count_once() -> None:
    text = (
        "BufferAssignment:\n"
        "allocation 5: size 4194304, page 0, thread-local:\n"
        " value: <3635 param_0.1801 @0> (size=4194304,offset=0): f32[8192,128]{1,0:T(8,128)}\n"
        "allocation 6: size 2048, page 0, parameter 3, shape |f32[8]| at ShapeIndex {}:\n"
        " value: <2 b @0> (size=2048,offset=0): f32[8]{0:T(512)}\n"
    )
    assert [allocation.bytes for allocation in parse_allocations(text)] == [2048]


def costs_of(report: Compiled) -> Costs:
    assert report.costs
    return report.costs


def test_costs_count_loops_as_often_as_they_run(report: Compiled) -> None:
    assert costs_of(report).flops == (1 + 5) * 2 * 100 * 256 * 512


def test_sums_over_cores_count_their_operands(report: Compiled) -> None:
    assert costs_of(report).collective_bytes == WEIGHTS.bytes


def test_padding_has_its_cause(report: Compiled) -> None:
    costs = costs_of(report)
    cause = costs.padding[0]
    assert (cause.size, cause.padded) == (100, 104)
    assert 0 < cause.bytes <= costs.padding_bytes < costs.hbm_bytes / 10
    assert any(padding.op for padding in costs.padding)


def test_nothing_is_computed_again_where_memory_suffices(report: Compiled) -> None:
    assert costs_of(report).remat_instructions == 0


def test_recomputed_instructions_are_counted(tmp_path: Path, dump: Dump, step: Program) -> None:
    text = dump.text("after_optimizations").replace("%convert.1 ", "%convert.1.remat2 ")
    text = text.replace("convolution_tanh_fusion =", "tanh.remat =")
    text = text.replace("%get-tuple-element", "%get-tuple-element.remat")
    (tmp_path / "m.after_optimizations.txt").write_text(text)
    (tmp_path / "m.after_optimizations-buffer-assignment.txt").write_text(
        dump.text("after_optimizations-buffer-assignment")
    )
    report = read_report(Dump(tmp_path), step, V3, "libtpu", LIMIT)
    assert costs_of(report).remat_instructions == text.count(".remat2 =") + text.count("h.remat =")
    assert costs_of(report).remat_instructions


def test_the_compilers_estimate_has_the_cycles_of_loops_as_often_as_they_run(dump: Dump) -> None:
    estimate = read_estimate(dump, 8 << 20)
    assert estimate.cycles is not None
    once = sum(
        int(part.partition('"')[0])
        for part in dump.text("after_codegen").split('"estimated_cycles":"')[1:]
    )
    assert once < estimate.cycles <= 5 * once


def test_without_code_there_are_no_cycles(tmp_path: Path) -> None:
    text = (RECORDED / "0.0.52" / "step.after_optimizations.txt").read_text()
    (tmp_path / "m.after_optimizations.txt").write_text(text)
    assert read_estimate(Dump(tmp_path), 8 << 20).cycles is None


# The texts of libtpu 0.0.52 and 0.0.21 for ResNet-50 with 2,048 images a core.
@pytest.mark.parametrize(
    "error",
    [
        "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (40.41G) exceeds available HBM (15.48G). HLO module: a.8506.",
        "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 40.27G of "
        "15.48G hbm. Exceeded hbm capacity by 24.79G.",
    ],
)
def test_an_out_of_memory_error_names_the_limit(error: str) -> None:
    assert is_out_of_memory(error)
    assert limit_in(error) == int(15.48 * 2**30)


def test_a_program_that_does_not_fit_has_memory_and_no_costs(dump: Dump, step: Program) -> None:
    report = read_report(dump, step, V3, "libtpu", 1024, "CompileTimeHbmOom: too large")
    assert (report.fits, report.costs, report.error) == (
        False,
        None,
        "CompileTimeHbmOom: too large",
    )
    assert report.buffers


def test_a_program_that_needs_more_than_there_is_does_not_fit_before_the_compiler_says_so(
    dump: Dump, step: Program
) -> None:
    report = read_report(dump, step, V3, "libtpu", 2**20)
    assert not report.fits
    assert re.fullmatch(r"needs 0\.00 GiB of 0\.00 GiB", report.error or "")


def test_a_dump_in_another_form_is_an_error(tmp_path: Path, step: Program) -> None:
    text = (RECORDED / "0.0.52" / "step.after_optimizations.txt").read_text()
    (tmp_path / "m.after_optimizations.txt").write_text(text)
    with pytest.raises(ValueError, match="no buffer assignment"):
        read_report(Dump(tmp_path), step, V3, "libtpu", LIMIT)


def test_a_dump_is_optimized_when_its_last_file_is_whole(tmp_path: Path) -> None:
    dump = Dump(tmp_path)
    file = tmp_path / "m.after_optimizations_after_buffer_assignment.txt"
    assert not dump.is_optimized()
    file.write_text("HloModule m\n\nENTRY %main () -> f32[] {\n  ROOT %a = f32[] ")
    assert not dump.is_optimized()
    file.write_text("HloModule m\n\nENTRY %main () -> f32[] {\n  ROOT %a = f32[] b()\n}\n\n")
    assert dump.is_optimized()
