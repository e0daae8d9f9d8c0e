"""A progress bar in a notebook, which is redrawn in place."""

import sys
from html import escape
from typing import Any


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, without importing IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar with a line of text, below the cell that runs."""

    def __init__(self) -> None:
        """Draw nothing before the first step."""
        self._handle: Any = None

    def show(self, part: float, text: str) -> None:
        """Draw the bar at `part`, 0 to 1, followed by `text`."""
        # The notebook's own; a kernel has it.
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        bar = f'<progress value="{part:.3f}" max="1" style="width: 20em"></progress>'
        drawn = HTML(f"{bar} {part:.0%} {escape(text)}")
        if self._handle is None:
            self._handle = display(drawn, display_id=True)
        else:
            self._handle.update(drawn)

    def close(self) -> None:
        """Keep the last state."""
        self._handle = None
