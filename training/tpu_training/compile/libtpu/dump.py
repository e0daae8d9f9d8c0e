"""The files that libtpu dumps, for a program that it compiles and for one that does not fit."""

from dataclasses import dataclass
from pathlib import Path

_OPTIMIZED = "*.after_optimizations.txt"
_BUFFERS = "*.after_optimizations-buffer-assignment.txt"
_LIVE = "*.after_optimizations-live-range.txt"
_GENERATED = "*.after_codegen.txt"
# Written after all of the above but the last: then only code generation is left.
_LAST = "*.after_optimizations_after_buffer_assignment.txt"
# The end of a module's text, which says that the file is whole.
_END = b"}"


@dataclass(frozen=True)
class Dump:
    """A folder that the compiler dumps into."""

    folder: Path

    def is_optimized(self) -> bool:
        """Whether the optimized program and its memory are written."""
        file = self._file(_LAST)
        return file is not None and file.read_bytes()[-8:].rstrip().endswith(_END)

    def optimized(self) -> str:
        """Return the text of the optimized program, or ""."""
        return self._text(_OPTIMIZED)

    def generated(self) -> str:
        """Return the text of the program after code generation, or ""."""
        return self._text(_GENERATED)

    def buffers(self) -> str:
        """Return the text of the buffer assignment, or ""."""
        return self._text(_BUFFERS)

    def live_ranges(self) -> str:
        """Return the text of the live ranges, or "": older versions put it into the buffers'."""
        return self._text(_LIVE)

    def _text(self, pattern: str) -> str:
        file = self._file(pattern)
        return file.read_text(encoding="utf-8", errors="replace") if file else ""

    def _file(self, pattern: str) -> Path | None:
        """Return the file of the greatest module: small ones are the compiler's own helpers."""
        files = list(self.folder.glob(pattern))
        return max(files, key=lambda file: file.stat().st_size, default=None)
