"""What keeps this machine from compiling for TPUs. Loads no TensorFlow."""

import contextlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from tpu_training.compile.libtpu.install import find_libtpu
from tpu_training.compile.versions import versions
from tpu_training.errors import InputError
from tpu_training.errors.catalog import NO_TENSORFLOW

# Memory of the compiler's process beside TensorFlow, in GiB, as measured for ResNet-50 and BERT.
QUICK_GIB, FULL_GIB = 1.2, 4.0
# Programs of this TensorFlow end this libtpu and older ones: "unique_id < INT32_MAX".
_NEW_TENSORFLOW, _OLD_LIBTPU = (2, 21), (0, 0, 21)


def machine_problems() -> Iterator[str]:
    """Yield what is wrong with the machine and its libtpu, with the cure."""
    try:
        libtpu = find_libtpu()
    except InputError as error:
        yield str(error)
        return
    tensorflow = versions()["tensorflow"]
    if tensorflow and _too_old(libtpu.version, tensorflow):
        yield (
            f"{libtpu.name} is older than TensorFlow {tensorflow} and ends when it reads its "
            "programs: pip install --upgrade libtpu (Python 3.10 gets none newer than 0.0.21: use "
            "3.11 or later)"
        )


def tensorflow_problems() -> Iterator[str]:
    """Yield that TensorFlow is missing, which makes the programs."""
    if importlib.util.find_spec("tensorflow") is None:
        yield (
            "TensorFlow is not installed, which makes the program to compile: pip install "
            f"'tpu-stack-training[cpu,compile]' [{NO_TENSORFLOW}]"
        )


def memory_problems(quick: bool, root: Path = Path("/")) -> Iterator[str]:
    """Yield that the machine lacks the memory to compile."""
    needed = QUICK_GIB if quick else FULL_GIB
    free = free_gib(root)
    if free is not None and free < needed:
        less = "" if quick or free < QUICK_GIB else f", or use --quick, which takes {QUICK_GIB} GiB"
        yield (
            f"this machine has {free:.1f} GiB of free memory and the compiler takes up to "
            f"{needed} GiB; free some, or use a larger machine{less}"
        )


def free_gib(root: Path = Path("/")) -> float | None:
    """Return how much memory a new process can have, within its container; None if unknown."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return None
    match = re.search(r"^MemAvailable: +(\d+) kB", text, re.M)
    free = [int(match[1]) * 1024] if match else []
    group = root / "sys/fs/cgroup"
    # Outside containers the file is missing; without a limit it says "max".
    with contextlib.suppress(OSError, ValueError):
        free.append(int((group / "memory.max").read_text()) - _used(group))
    return min(free) / 2**30 if free else None


def _used(group: Path) -> int:
    """Return what the container uses and can't give back: the page cache doesn't count."""
    used = int((group / "memory.current").read_text())
    match = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
    return used - (int(match[1]) if match else 0)


def _too_old(libtpu: str, tensorflow: str) -> bool:
    return _numbers(tensorflow) >= _NEW_TENSORFLOW and _numbers(libtpu)[:3] <= _OLD_LIBTPU


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
