"""Reading HLO: shapes with their tiles, instructions, loops, origins."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tpu_training.compile.costs import (
    _multiples,
    count_cycles,
    executed,
    flops_of,
    moved,
    trip_count,
)
from tpu_training.compile.hlo import Module, Operand, Origins, parse_module, parse_shapes


# Sizes in memory as libtpu's buffer assignment names them for these very shapes.
@pytest.mark.parametrize(
    ("text", "logical", "tiled"),
    [
        ("f32[1568,128]{1,0:T(8,128)}", 802816, 802816),
        ("f32[128,10]{0,1:T(8,128)}", 5120, 8192),
        ("u8[256,28,28,1]{0,2,3,1:T(8,128)(4,1)}", 200704, 229376),
        ("bf16[256,28,28,1]{0,2,3,1:T(8,128)(2,1)}", 401408, 458752),
        ("bf16[100,28,28,16]{0,3,2,1:T(8,128)(2,1)}", 2508800, 3211264),
        ("f32[3,3,1,16]{3,1,2,0:T(4,128)}", 576, 6144),
        ("bf16[16]{0:T(512)(128)(2,1)}", 32, 1024),
        ("s32[]{:T(128)}", 4, 512),
        ("pred[]{:T(1024)}", 1, 1024),
        ("f32[3,5]", 60, 60),
    ],
)
def test_a_shape_has_its_logical_size_and_that_in_tiles(
    text: str, logical: int, tiled: int
) -> None:
    (shape,) = parse_shapes(text)
    assert (shape.bytes, shape.tiled_bytes) == (logical, tiled)


def test_a_shape_says_which_memory_it_is_in() -> None:
    shapes = parse_shapes("(f32[8,128]{1,0:T(8,128)S(1)}, s32[2]{0:T(128)}, u32[]{:S(2)})")
    assert [shape.space for shape in shapes] == [1, 0, 2]


def test_a_batch_of_100_is_padded_to_104_where_it_is_the_second_dimension() -> None:
    (shape,) = parse_shapes("f32[100,256]{1,0:T(8,128)}")
    assert shape.padded_dims() == [(100, 104, 1.0)]


def test_padding_of_two_dimensions_is_shared_by_how_much_each_grows() -> None:
    (shape,) = parse_shapes("f32[4,64]{1,0:T(8,128)}")
    assert shape.padded_dims() == [(4, 8, 0.5), (64, 128, 0.5)]


def test_instructions_have_operands_shapes_and_metadata(parsed: Callable[..., Module]) -> None:
    body = (
        "  %a.1 = (f32[2,3]{1,0}, /*index=1*/s32[]) parameter(0)\n"
        '  ROOT %b = f32[2,3]{1,0} add(%a.1#0, f32[2,3] %c), metadata={op_name="jit(f)/add" '
        'source_file="own.py" source_line=7}'
    )
    add = parsed(body).entry.root
    assert add.operands == (Operand("a.1", 0), Operand("c", None))
    assert [shape.dims for shape in parsed(body).entry.shapes_of(add.operands[0])] == [(2, 3)]
    assert [add.metadata(name) for name in ("op_name", "source_file", "source_line")] == [
        "jit(f)/add",
        "own.py",
        "7",
    ]


def test_a_text_without_an_entry_computation_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        parse_module("HloModule m\n")


def test_a_loops_count_is_found_by_its_counter(module: Module) -> None:
    (loop,) = (i for i in module.entry.instructions.values() if i.opcode == "while")
    assert trip_count(module, module.entry, loop) == 5


def test_a_loops_count_is_taken_from_the_compiler_where_it_says_it(
    parsed: Callable[..., Module],
) -> None:
    body = '  ROOT %w = s32[] while(%x), backend_config={"known_trip_count":{"n":"12"}}'
    module = parsed(body)
    assert trip_count(module, module.entry, module.entry.root) == 12


CONDITION = """%condition (p: (s32[], s32[])) -> pred[] {{
  %p = (s32[], s32[]) parameter(0)
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%p#0, {limit}), direction=LT
}}

"""
BODY = """%body (q: (s32[], s32[])) -> (s32[], s32[]) {{
  %q = (s32[], s32[]) parameter(0)
  %two = s32[] constant(2)
  %next = s32[] {step}
  ROOT %state = (s32[], s32[]) tuple(%next, %q#1)
}}

"""
LOOP = """  %begin = s32[] constant(1)
  %end = s32[] constant(10)
  %state.1 = (s32[], s32[]) tuple(%begin, %end)
  ROOT %loop = (s32[], s32[]) while(%state.1), condition=%condition, body=%body"""


@pytest.mark.parametrize(
    ("limit", "step", "count"),
    [
        ("%limit", "add(%q#0, %two)", 3),
        # The limit is a part of the loop's state.
        ("%p#1", "add(%q#0, %two)", 5),
        ("%limit", "multiply(%q#0, %two)", None),
    ],
)
def test_a_loop_counts_from_its_start_to_its_limit_by_its_step(
    parsed: Callable[..., Module], limit: str, step: str, count: int | None
) -> None:
    module = parsed(LOOP, CONDITION.format(limit=limit) + BODY.format(step=step))
    assert trip_count(module, module.entry, module.entry.root) == count


def test_the_loop_of_a_gradient_runs_as_often_as_the_loop_it_is_of(
    parsed: Callable[..., Module],
) -> None:
    # It counts up to the other one's last count: 1, 3, 5, 7, 9 and 11.
    entry = LOOP.replace("ROOT ", "") + (
        "\n  %zero = s32[] constant(0)"
        "\n  %last = s32[] copy(%loop#0)"
        "\n  %state.2 = (s32[], s32[]) tuple(%zero, %last)"
        "\n  ROOT %back = (s32[], s32[]) while(%state.2), condition=%condition, body=%body"
    )
    body = BODY.format(step="add(%q#0, %two)")
    module = parsed(entry, CONDITION.format(limit="%p#1") + body)
    assert trip_count(module, module.entry, module.entry.root) == 6


def test_a_loop_body_counts_as_often_as_it_runs(module: Module) -> None:
    flops = {
        instruction.name: (flops_of(module, computation, instruction), times)
        for computation, instruction, times in executed(module)
        if flops_of(module, computation, instruction)
    }
    # 100 x 256 times 256 x 512 once, as the compiler takes it out of the loop, and its gradient.
    each = 2.0 * 100 * 256 * 512
    assert sorted(flops.values()) == [(each, 1), (each, 5)]


def test_a_conditional_counts_as_its_shortest_branch(parsed: Callable[..., Module]) -> None:
    branches = "".join(
        f"%{name} (x.{name}: f32[8]) -> f32[8] {{\n  %x.{name} = f32[8] parameter(0)\n"
        + "".join(f"  %n{name}{k} = f32[8] negate(%x.{name})\n" for k in range(length))
        + "}\n\n"
        for name, length in (("short", 1), ("long", 3))
    )
    module = parsed(
        "  ROOT %c = f32[8] conditional(%i, %a, %b), branch_computations={%long, %short}", branches
    )
    assert [i.name for _, i, _ in executed(module)] == ["c", "x.short", "nshort0"]


@pytest.mark.parametrize("image_dilation", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dilation", [1, 2, 3, 4, 6])
def test_window_positions_match_a_brute_force_count(dilation: int, image_dilation: int) -> None:
    for start, last, size in itertools.product(range(-9, 10), (0, 5, 12), (1, 3, 8)):
        places = range(start, start + size * dilation, dilation)
        counted = sum(0 <= place <= last and place % image_dilation == 0 for place in places)
        assert _multiples(start, last, size, dilation, image_dilation) == counted


def test_a_product_of_matrices_for_each_of_many_examples_is_counted_at_once(
    parsed: Callable[..., Module],
) -> None:
    # As the compiler writes it: each example's window meets that example alone.
    module = parsed(
        "  %left = bf16[90000,64,128] parameter(0)\n"
        "  %right = bf16[90000,128,32] parameter(1)\n"
        "  ROOT %c = bf16[90000,64,32] convolution(%left, %right), "
        "window={size=90000 stride=89999 lhs_dilate=90000}, dim_labels=0bf_0io->0bf"
    )
    assert flops_of(module, module.entry, module.entry.root) == 2.0 * 90_000 * 64 * 128 * 32


# As XLA's cost analysis counts them: window positions in the padding are no operations.
@pytest.mark.parametrize(
    ("window", "flops"),
    [
        ("window={size=3x3 pad=1_1x1_1}", 2 * 2 * (3 * 4 - 2) * (3 * 4 - 2) * 5 * 7),
        ("window={size=3x3 pad=1_1x1_1 stride=2x2}", 2 * 2 * (2 + 3) * (2 + 3) * 5 * 7),
        ("window={size=3x3}", 2 * 2 * (3 * 2) * (3 * 2) * 5 * 7),
        ("window={size=3x3 pad=2_2x2_2 lhs_dilate=2x2}", 2 * 2 * 12 * 12 * 5 * 7),
    ],
)
def test_a_convolution_has_operations_where_its_window_meets_the_image(
    parsed: Callable[..., Module], window: str, flops: int
) -> None:
    result = {"stride": 2, "size=3x3}": 2, "lhs_dilate": 9}
    side = next((side for word, side in result.items() if word in window), 4)
    module = parsed(
        "  %image = f32[2,4,4,5] parameter(0)\n"
        "  %kernel = f32[3,3,5,7] parameter(1)\n"
        f"  ROOT %c = f32[2,{side},{side},7] convolution(%image, %kernel), {window}, "
        "dim_labels=b01f_01io->b01f"
    )
    assert flops_of(module, module.entry, module.entry.root) == flops


def test_a_product_has_two_operations_for_each_pair(parsed: Callable[..., Module]) -> None:
    module = parsed(
        "  %a = f32[3,4,5] parameter(0)\n  %b = f32[3,5,6] parameter(1)\n"
        "  ROOT %d = f32[3,4,6] dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_batch_dims={0}, rhs_contracting_dims={1}"
    )
    assert flops_of(module, module.entry, module.entry.root) == 2 * 3 * 4 * 5 * 6


@pytest.mark.parametrize(
    ("instruction", "sizes"),
    [
        ("f32[8] add(%a, %b)", [4000, 32, 32]),
        ("f32[8] slice(%a), slice={[0:8]}", [32, 32]),
        ("f32[1000] dynamic-update-slice(%a, %b, %i)", [32, 4, 32]),
        ("f32[8]{0:S(1)} add(%v, %b)", [32]),
        ("(f32[8]{0:S(1)}, f32[8], u32[]{:S(2)}) copy-start(%b)", [32]),
        ("f32[8]{0:S(1)} copy-done(%s)", []),
        ("f32[8] copy-done(%s)", [32]),
        ("f32[8] bitcast(%b)", []),
        ('f32[1000] custom-call(), custom_call_target="AllocateBuffer"', []),
    ],
)
def test_an_instruction_moves_what_it_reads_and_writes_of_hbm(
    parsed: Callable[..., Module], instruction: str, sizes: list[int]
) -> None:
    module = parsed(
        "  %a = f32[1000] parameter(0)\n  %b = f32[8] parameter(1)\n  %i = s32[] parameter(2)\n"
        "  %v = f32[1000]{0:S(1)} parameter(3)\n"
        "  %s = (f32[8]{0:S(1)}, f32[8], u32[]{:S(2)}) copy-start(%b)\n"
        f"  ROOT %r = {instruction}"
    )
    shapes = moved(module, module.entry, module.entry.root)
    assert [shape.bytes for shape in shapes] == sizes


def test_a_fusion_reads_only_the_slices_that_it_takes(parsed: Callable[..., Module]) -> None:
    fused = (
        "%fused (p: f32[1000], q: f32[1000], i: s32[]) -> f32[8] {\n"
        "  %p = f32[1000] parameter(0)\n  %q = f32[1000] parameter(1)\n  %i = s32[] parameter(2)\n"
        "  %s = f32[8] dynamic-slice(%p, %i), dynamic_slice_sizes={8}\n"
        "  %r = f32[8] reduce-window(%q, %i)\n"
        "  ROOT %sum = f32[8] add(%s, %r)\n}\n\n"
    )
    module = parsed(
        "  %a = f32[1000] parameter(0)\n  %i.1 = s32[] parameter(1)\n"
        "  ROOT %f = f32[8] fusion(%a, %a, %i.1), kind=kLoop, calls=%fused",
        fused,
    )
    shapes = moved(module, module.entry, module.entry.root)
    assert [shape.bytes for shape in shapes] == [32, 4000, 4, 32]


@pytest.mark.parametrize(("taken", "size"), [("slice(%p), slice={[0:8]}", 32), ("negate(%p)", 400)])
def test_a_fusion_inside_a_fusion_reads_only_the_slices_that_it_takes(
    parsed: Callable[..., Module], taken: str, size: int
) -> None:
    others = (
        f"%inner (p: f32[100]) -> f32[8] {{\n  %p = f32[100] parameter(0)\n"
        f"  ROOT %s = f32[8] {taken}\n}}\n\n"
        "%outer (q: f32[100]) -> f32[8] {\n  %q = f32[100] parameter(0)\n"
        "  %b = f32[100] bitcast(%q)\n"
        "  ROOT %n = f32[8] fusion(%b), kind=kLoop, calls=%inner\n}\n\n"
    )
    module = parsed(
        "  %a = f32[100] parameter(0)\n  ROOT %f = f32[8] fusion(%a), kind=kLoop, calls=%outer",
        others,
    )
    shapes = moved(module, module.entry, module.entry.root)
    assert [shape.bytes for shape in shapes] == [size, 32]


def test_an_instruction_comes_from_its_line(module: Module) -> None:
    (summed,) = (n for n, i in module.entry.instructions.items() if i.opcode == "all-reduce")
    assert Origins(module).of(summed) == ("sum", "own.py:20")


def test_a_part_of_a_fusions_results_comes_from_the_line_that_made_it(module: Module) -> None:
    (fusion,) = (
        i for i in module.entry.instructions.values() if len(i.shapes) == 2 and i.opcode == "fusion"
    )
    origins = Origins(module)
    assert {origins.of(fusion.name, part) for part in (0, 1)} == {
        ("loss", "own.py:22"),
        ("update", "own.py:21"),
    }


def test_lines_of_the_framework_are_not_shown_as_the_users(parsed: Callable[..., Module]) -> None:
    body = (
        '  ROOT %a = f32[] add(%b, %c), metadata={op_name="dense/Add" source_file='
        '"/usr/lib/python3/site-packages/tensorflow/python/framework/ops.py" source_line=1200}'
    )
    module = parsed(body)
    assert Origins(module).of("a") == ("dense/Add", "")


def test_a_copy_comes_from_where_its_operand_does(parsed: Callable[..., Module]) -> None:
    module = parsed(
        '  %a = f32[8] parameter(0), metadata={op_name="XLA_Args"}\n'
        '  %b = f32[8] negate(%a), metadata={op_name="Neg"}\n'
        "  %c = f32[8] copy(%a)\n  ROOT %d = f32[8] copy(%b)"
    )
    origins = Origins(module, arguments=("dense/kernel",))
    assert (origins.of("d"), origins.of("c")) == (("Neg", ""), ("dense/kernel", ""))


def test_cycles_that_the_compiler_does_not_know_are_left_out() -> None:
    def line(name: str, cycles: int) -> str:
        config = f'{{"estimated_cycles":"{cycles}"}}'
        return f"  %{name} = f32[] constant(0), backend_config={config}\n"

    body = line("a", 7) + line("b", 2**64 - 1)
    assert count_cycles(parse_module(f"HloModule m\n\nENTRY %main () -> f32[] {{\n{body}}}\n")) == 7
