"""Answers as text: one TPU type in full, or several side by side.

Each figure says what stands behind it (bound, compiled, estimate), as no TPU has confirmed it.
"""

import math
from collections.abc import Iterator, Sequence

from tpu_core import words
from tpu_training.compile import answer as facts

# Of the first column, which says what a line is about; lines that explain it leave it empty.
_WIDTH = 12
_HEADS = (
    *("TPU", "replicas", "needs", "of", "fits", "step ≥", "by", "an hour", "epoch ≥", "in dollars"),
    "on spot",
)
# Which figures Google's cost model makes, and which nothing can undercut.
LEGEND = (
    "bound: no run of this program is faster. compiled: what Google's compiler allocates and "
    "counts. estimate: its cost model. Nothing was measured on a TPU."
)


def answer_lines(answer: facts.Answer, examples: int | None) -> Iterator[str]:
    """Yield all that is known of a step, and of an epoch if its number of `examples` is known.

    Lines that an earlier answer had are the same here, so that they are not printed twice.
    """
    yield from _memory_lines(answer)
    yield from _step_lines(answer, examples)
    if answer.evaluation is not None:
        yield from _need("evaluation", answer.evaluation)
    yield from _largest_lines(answer)
    yield from _estimate_lines(answer)


def _memory_lines(answer: facts.Answer) -> Iterator[str]:
    """Yield whether the step fits, what uses the memory, and the largest buffers."""
    if answer.part_batch_size:
        parts = f", in {answer.accumulation} parts" if answer.accumulation > 1 else ""
        yield (
            f"{answer.tpu}: {words.plural(answer.replicas, 'replica')}, a batch of "
            f"{answer.global_batch_size:,} in all, {answer.part_batch_size} a replica at a time"
            f"{parts}"
        )
    else:
        yield f"{answer.tpu}: a program for {words.plural(answer.replicas, 'replica')}"
    yield from _need("memory", answer.train)
    for usage in answer.train.usage:
        yield _row("", f"{size(usage.bytes):>10}  {usage.kind}")
    if answer.train.buffers:
        yield _row("buffers", "the largest, with the line that makes them")
    for buffer in answer.train.buffers:
        yield _row("", _buffer(buffer))


def _step_lines(answer: facts.Answer, examples: int | None) -> Iterator[str]:
    """Yield what a step takes at least, why, and what an epoch costs at least."""
    costs = answer.train.costs
    if costs is None:
        return
    least = facts.bound(costs, answer.facts)
    yield _row("step", f"at least {words.duration(least.seconds)} (bound, by {least.limit})")
    yield _row(
        "",
        f"{metric(costs.flops, 'FLOP')}, {metric(costs.hbm_bytes, 'B')} of HBM traffic a replica; "
        f"at most {least.utilisation:.0%} of the chip's peak",
    )
    if costs.remat_instructions:
        yield _row(
            "", f"{words.plural(costs.remat_instructions, 'result')} computed again to save memory"
        )
    yield from _padding(costs)
    if examples and answer.part_batch_size:
        yield from _epoch(answer, least, examples)


def _largest_lines(answer: facts.Answer) -> Iterator[str]:
    """Yield the largest batches."""
    if answer.largest is None:
        return
    fits, plain = answer.whole(answer.largest.fits), answer.whole(answer.largest.plain)
    if not fits:
        yield _row("largest", "not even one example a replica fits (compiled)")
        return
    yield _row("largest", f"batch of {fits:,} fits (compiled, to 1 %)")
    yield _row("", f"batch of {plain:,} without computing anything twice")


def _estimate_lines(answer: facts.Answer) -> Iterator[str]:
    """Yield the compiler's estimate."""
    seconds = facts.estimated_seconds(answer.train, answer.facts)
    if seconds is not None:
        rate = ""
        if answer.part_batch_size:
            rate = f", {answer.global_batch_size / seconds:,.0f} examples/s"
        yield _row(
            "estimate", f"{words.duration(seconds)} a step{rate} (the compiler's cost model)"
        )
    if facts.is_below_bound(answer.train, answer.facts):
        yield _row("", "below the bound: it counts no copies from HBM that overlap computations")


def comparison_lines(answers: Sequence[facts.Answer], examples: int | None) -> Iterator[str]:
    """Yield a table with a line for each TPU type."""
    rows = [_comparison(answer, examples) for answer in answers]
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    for row in (_HEADS, *rows):
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def size(count: float) -> str:
    """Return a number of bytes in GiB, MiB or KiB, as TPUs' memory is counted.

    From 1000 MiB on it is GiB: a column of sizes is easier to compare.
    """
    gib, mib = count / 2**30, count / 2**20
    if mib >= 1000:
        return f"{gib:.2f} GiB"
    if mib >= 1:
        return f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"
    return f"{math.ceil(count / 1024)} KiB"


def metric(value: float, unit: str) -> str:
    """Return a quantity with the prefix that suits it: `3.07 TFLOP`, `210 MFLOP`."""
    power = min(int(math.log10(max(value, 1)) / 3), 5)
    return f"{value / 1000**power:.3g} {('', *'kMGTP')[power]}{unit}"


def dollars(amount: float | None) -> str:
    """Return a price, or a dash where Google lists none."""
    return "–" if amount is None else words.money(amount)


def _comparison(answer: facts.Answer, examples: int | None) -> tuple[str, ...]:
    """Return a row of `_HEADS`; a dash stands where a step does not fit or no price is listed."""
    costs, tpu = answer.train.costs, answer.facts
    least = costs and facts.bound(costs, tpu)
    whole = least and examples and facts.epoch(least, answer.global_batch_size, examples, tpu)
    return (
        answer.tpu,
        str(answer.replicas),
        size(answer.train.needed_bytes),
        size(answer.train.limit_bytes),
        "yes" if answer.train.fits else "NO",
        words.duration(least.seconds) if least else "–",
        least.limit if least else "–",
        dollars(tpu.on_demand.hour if tpu.on_demand else None),
        words.duration(whole.seconds) if whole else "–",
        dollars(whole.on_demand if whole else None),
        dollars(whole.spot if whole else None),
    )


def _need(title: str, compiled: facts.Compiled) -> Iterator[str]:
    part = compiled.needed_bytes / compiled.limit_bytes if compiled.limit_bytes else 0.0
    verdict = "fits" if compiled.fits else "DOES NOT FIT"
    yield _row(
        title,
        f"{size(compiled.needed_bytes)} of {size(compiled.limit_bytes)} a replica ({part:.0%}): "
        f"{verdict} (compiled, {compiled.compiler})",
    )


def _padding(costs: facts.Costs) -> Iterator[str]:
    # Less would be shown as 0 %.
    if costs.padding_part < 0.005:
        return
    yield _row("padding", f"{costs.padding_part:.0%} of the traffic is padding of memory tiles")
    for cause in costs.padding[:3]:
        where = " ".join(text for text in (cause.op, cause.where) if text)
        yield _row(
            "",
            f"{size(cause.bytes):>10}  {cause.size} is padded to {cause.padded}"
            f"{f' ({where})' if where else ''}",
        )


def _epoch(answer: facts.Answer, least: facts.Bound, examples: int) -> Iterator[str]:
    tpu = answer.facts
    found = facts.epoch(least, answer.global_batch_size, examples, tpu)
    prices = [
        f"{dollars(amount)} {name} ({price.region}, {dollars(price.hour)}/h)"
        for name, amount, price in (
            ("on demand", found.on_demand, tpu.on_demand),
            ("spot", found.spot, tpu.spot),
        )
        if price is not None
    ]
    cost = ", ".join(prices) or "Google lists no price"
    yield _row(
        "epoch",
        f"{examples:,} examples take at least {words.duration(found.seconds)} (bound): {cost}",
    )


def _buffer(buffer: facts.Buffer) -> str:
    padded = ""
    if buffer.bytes > buffer.unpadded_bytes:
        padded = f", {1 - buffer.unpadded_bytes / buffer.bytes:.0%} padding"
    where = f"  {buffer.where}" if buffer.where else ""
    shape = buffer.shape.partition("{")[0]
    return f"{size(buffer.bytes):>10}  {shape}{padded}  {buffer.op or buffer.what}{where}"


def _row(title: str, text: str) -> str:
    return f"{title.ljust(_WIDTH)}{text}"


def misfit(answer: facts.Answer) -> str | None:
    """Return one sentence on what does not fit and the cure; None if everything fits.

    `pulumi preview` and `tpustack check` warn with it before anything is created.
    """
    if answer.fits:
        return None
    train = not answer.train.fits
    refused = answer.train if train or answer.evaluation is None else answer.evaluation
    what = f"a step of batch {answer.global_batch_size:,}" if train else "the evaluation"
    return f"{what} does not fit {answer.tpu}: {_shortage(refused)}. {_cure(answer, train)}"


def largest_batch(answer: facts.Answer) -> str | None:
    """Return a sentence on the largest batch that fits; None if it was not searched."""
    if answer.largest is None:
        return None
    if not answer.largest.fits:
        return f"Not even one example a replica fits {answer.tpu}"
    fits, plain = answer.whole(answer.largest.fits), answer.whole(answer.largest.plain)
    return (
        f"The largest --global_batch_size that fits {answer.tpu} is {fits}, or {plain} without "
        "computing anything twice"
    )


def _shortage(refused: facts.Compiled) -> str:
    return (
        f"a replica has {size(refused.limit_bytes)} and it needs {size(refused.needed_bytes)} "
        f"(compiled, {refused.compiler})"
    )


def _cure(answer: facts.Answer, train: bool) -> str:
    if not train:
        return "Lower --evaluation_batch_size"
    known = largest_batch(answer)
    return f"{known}; or raise --gradient_accumulation" if known else "Lower --global_batch_size"
