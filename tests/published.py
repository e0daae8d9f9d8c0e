"""Published times of training steps, and the compiled facts of the same steps.

`python -m tests.published` compiles them and writes the facts into published-facts.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tpu_training.compile.answer import Compiled, Costs, Tpu, bound, tpus
from tpu_training.compile.session import Session
from tpu_training.compile_command import Job, Problems, add_compile_arguments, build_compile_job

FOLDER = Path(__file__).parent
FACTS = FOLDER / "published-facts.json"


@contextmanager
def no_cache() -> Iterator[None]:
    """Keep answers in a folder of their own, which is empty and is removed."""
    before = os.environ.get("XDG_CACHE_HOME")
    with TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


class Step:
    """A job on a TPU type.

    Args:
        tpu: the TPU type's name.
        arguments: those of `tpu-training compile`.
    """

    def __init__(self, tpu: str, arguments: Sequence[str]) -> None:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        add_compile_arguments(parser)
        known, rest = parser.parse_known_args(arguments)
        known.rest = rest
        problems = Problems()
        self.tpu: Tpu = tpus()[tpu]
        job = build_compile_job(known, [self.tpu], problems)
        problems.end()
        assert job
        self.job: Job = job
        self._session = Session(job.request, lambda *_: None)

    @property
    def part(self) -> int:
        """Examples that a replica processes at a time."""
        return self.job.programs.params.part_batch_size(self.tpu.replicas)

    def step(self, part: int | None = None, *, full: bool = False) -> Compiled:
        """Return the compiled training step."""
        return self._session.train(self.tpu, self.job.programs, part or self.part, full=full)


@dataclass(frozen=True)
class Published:
    """A published time next to ours, in milliseconds."""

    name: str
    source: str
    published: float
    bound: float
    estimate: float


@dataclass(frozen=True)
class Part:
    """What is kept of a compiled step: counts of one replica."""

    compiler: str
    flops: float
    hbm_bytes: float
    collective_bytes: int
    cycles: int


def rows() -> list[dict[str, Any]]:
    """Return the published times as the file has them."""
    content = yaml.safe_load((FOLDER / "published.yaml").read_text(encoding="utf-8"))
    return list(content["steps"])


def facts() -> dict[str, list[dict[str, Any]]]:
    """Return the committed facts by the row's name."""
    found: dict[str, list[dict[str, Any]]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return found


def compare(known: Mapping[str, list[dict[str, Any]]]) -> list[Published]:
    """Put the published times next to ours."""
    return [
        Published(
            row["name"],
            row["source"],
            row["publishedMs"],
            _total(row, known, _bound),
            _total(row, known, _estimate),
        )
        for row in rows()
    ]


def compile_all() -> dict[str, list[dict[str, Any]]]:
    """Compile every step in full."""
    with no_cache():
        return {
            row["name"]: [
                asdict(_part(Step(row["tpu"], arguments(part)).step(full=True)))
                for part in row["parts"]
            ]
            for row in rows()
        }


def arguments(part: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a part's job; its evaluation is of no interest."""
    return [*part["arguments"], "--evaluation_batch_size=64"]


def markdown() -> str:
    """Return the page's table."""
    lines = [
        "| step | published | bound | published ÷ bound | estimate | published ÷ estimate |",
        "|---|---|---|---|---|---|",
    ]
    for one in compare(facts()):
        url, _, note = one.source.partition(" ")
        lines.append(
            f"| {one.name} | [{one.published:.3g} ms]({url}) {note} | {one.bound:.3g} ms "
            f"| {one.published / one.bound:.1f} | {one.estimate:.3g} ms "
            f"| {one.published / one.estimate:.1f} |"
        )
    return "\n".join(lines)


def _part(compiled: Compiled) -> Part:
    costs, estimate = compiled.costs, compiled.estimate
    assert costs
    assert estimate
    assert estimate.cycles
    counts = (costs.flops, costs.hbm_bytes, costs.collective_bytes, estimate.cycles)
    return Part(compiled.compiler, *counts)


def _bound(tpu: Tpu, part: Part) -> float:
    return bound(Costs(part.flops, part.hbm_bytes, 0, (), part.collective_bytes, 0), tpu).seconds


def _estimate(tpu: Tpu, part: Part) -> float:
    return part.cycles / tpu.clock


def _total(
    row: Mapping[str, Any], known: Mapping[str, Any], figure: Callable[[Tpu, Part], float]
) -> float:
    """Return a figure of a row in milliseconds: the sum of its parts by their shares."""
    parts = zip(row["parts"], known[row["name"]], strict=True)
    tpu = tpus()[row["tpu"]]
    return sum(float(part["share"]) * figure(tpu, Part(**fact)) for part, fact in parts) * 1e3


def main() -> int:
    """Compile, write the facts and print the page's table."""
    FACTS.write_text(json.dumps(compile_all(), indent=2) + "\n", encoding="utf-8")
    print(markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
