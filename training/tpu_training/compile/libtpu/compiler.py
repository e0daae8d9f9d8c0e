"""Compile a program for a TPU with libtpu."""

import dataclasses
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_training.compile.libtpu import faults
from tpu_training.compile.libtpu.dump import Dump
from tpu_training.compile.libtpu.install import Libtpu, find_libtpu
from tpu_training.compile.libtpu.limits import is_out_of_memory
from tpu_training.compile.libtpu.process import compiler_process, ticks, work_folder
from tpu_training.compile.libtpu.report import read_estimate, read_report
from tpu_training.compile.result import Compiled, Program, Progress, Topology, Watch

_QUICK_LIMIT_SECONDS = 900.0
_FULL_LIMIT_SECONDS = 7200.0
_WATCH_SECONDS = 0.5


def compile_program(
    program: Program,
    topology: Topology,
    *,
    full: bool = False,
    progress: Watch | None = None,
    time_limit: float | None = None,
) -> Compiled:
    """Compile `program` for `topology` and return what libtpu says.

    Without `full` the compiler is stopped before it generates code, as soon as memory and the
    optimized program are known: seconds instead of minutes, and 0.5 GB instead of up to 4 GB.
    A program that needs too much memory is no error: the answer then says so (`fits`).

    Args:
        progress: Called twice a second.
        time_limit: In seconds; a quarter of an hour, or two hours with `full`, if None.

    Raises:
        TrainingError: There is no libtpu, it refuses the program, crashes or takes too long.
            Nothing is left behind.
    """
    libtpu = find_libtpu()
    limit = time_limit or (_FULL_LIMIT_SECONDS if full else _QUICK_LIMIT_SECONDS)
    with work_folder() as folder:
        work = _Compilation(folder, libtpu, program, topology)
        work.write_request()
        with compiler_process(folder, topology.accelerator_type) as child:
            try:
                return work.wait(child, limit, full, progress or (lambda _: None))
            except TimeoutError:
                raise faults.timed_out(program, limit) from None


@dataclass(frozen=True)
class _Compilation:
    """One compilation in its folder."""

    folder: Path
    libtpu: Libtpu
    program: Program
    topology: Topology

    @property
    def dump(self) -> Dump:
        return Dump(self.folder / "dump")

    def write_request(self) -> None:
        """Write what the child reads."""
        program = self.program
        (self.folder / "program").write_bytes(program.hlo)
        request = {
            "library": str(self.libtpu.library),
            "topology": self.topology.name,
            "options": dict(self.topology.options),
            "format": program.format,
            "replicas": program.replicas,
            "partitions": program.partitions,
            # Shardings of the dialect `sdy` are for this partitioner; GSPMD knows them not.
            "shardy": program.format == "mlir" and b"sdy" in program.hlo,
        }
        (self.folder / "request.json").write_text(json.dumps(request), encoding="utf-8")

    def wait(
        self, child: "subprocess.Popen[bytes]", limit: float, full: bool, watch: Watch
    ) -> Compiled:
        """Return the answer as soon as it is known."""
        known, shown = None, 0.0
        for seconds in ticks(child, limit):
            if known is None and self.dump.is_optimized():
                if not full:
                    child.kill()  # It would go on to generate code while the dump is read.
                known = self._read()
                if not full or not known.fits:
                    return known
                watch(Progress(seconds, known))
            if seconds >= shown + _WATCH_SECONDS:
                shown = seconds
                watch(Progress(seconds, known))
        return self._end(child.returncode, full)

    def _end(self, code: int, full: bool) -> Compiled:
        """Return the answer of a child that has ended."""
        answer = self._json("answer.json")
        if answer is None:
            raise faults.crashed(self.libtpu, self.program, code, self._log())
        if costs := answer.get("costs"):
            known = self._read()
            needed = answer["needed_bytes"]
            estimate = read_estimate(self.dump, costs, needed) if full else None
            return dataclasses.replace(known, estimate=estimate)
        error = answer.get("error", "")
        if is_out_of_memory(error):
            return self._read(error)
        raise faults.refused(answer, self.program, self.topology)

    def _read(self, error: str | None = None) -> Compiled:
        limit = self._limit_bytes()
        try:
            return read_report(
                self.dump, self.program, self.topology, self.libtpu.name, limit, error
            )
        except (ValueError, KeyError, IndexError) as problem:
            raise faults.unreadable(self.libtpu, problem) from problem

    def _limit_bytes(self) -> int:
        limit: int | None = (self._json("topology.json") or {}).get("limit_bytes")
        if limit is None:
            raise faults.no_limit(self.libtpu, self.topology)
        return limit

    def _json(self, name: str) -> dict[str, Any] | None:
        file = self.folder / name
        if not file.exists():
            return None
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content

    def _log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")
