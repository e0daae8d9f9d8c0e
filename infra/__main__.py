"""The program of the stacks in this clone; `tpustack new` writes one like it for other projects."""

from pathlib import Path

from tpu_infra import program

program.run(Path(__file__).resolve().parent.parent)
