"""`tpu-training compile --cached`: what was found before, at once and without a compiler."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from tpu_training.commands.arguments import Command
from tpu_training.commands.compile_job import Problems, read_described
from tpu_training.commands.compile_run import show
from tpu_training.compile.cached import cached, described
from tpu_training.compile.tpus import Tpu
from tpu_training.errors import EXIT_FAILURE


def build_cached(known: argparse.Namespace, kinds: Sequence[Tpu], problems: Problems) -> Command:
    """Return the command that prints what is known of the job. Raises InputError."""
    problems.add(
        f"--cached answers for a job, without --{name}"
        for name in ("hlo", "stablehlo", "compare", "quick")
        if getattr(known, name)
    )
    job = problems.of(partial(described, known.model, known.config, known.rest))
    manifest = problems.of(partial(read_described, known))
    problems.end()
    assert job
    assert manifest
    model, given = job
    given |= {"task": known.task} if known.task else {}
    examples = known.examples or manifest.split("train").examples or None

    def answer() -> int:
        tpu = kinds[0].name
        found = cached(tpu, model, given, manifest)
        if found is None and not known.json:
            unknown = f"nothing is known of this job on {tpu}: leave out --cached to compile it"
            print(unknown, file=sys.stderr)
            return EXIT_FAILURE
        about = {"model": model, "params": given, "examples": examples}
        return show([found] if found else [], about, examples, as_json=known.json)

    return answer
