"""What the lines of a serial port say about the training on the VM."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What the buffer holds of earlier boots is before the last of these: it "persists across in-place
# reboots", and a stop wipes it. Google's own list, in its order (Google Cloud CLI, googlecloudsdk/
# command_lib/compute/troubleshoot: boot session markers of the SSH troubleshooter).
_BOOTS = (
    r"SeaBIOS \(version",
    r"BdsDxe: loading Boot",
    r"UEFI: Attempting to start image",
    r"Welcome to GRUB!",
    r"Linux version \d",
)
_BOOT = re.compile("|".join(_BOOTS))
_PROGRESS = re.compile(r"progress step=(\d+)/(\d+)(.*)")
_FIELD = re.compile(r"(\w+)=(\S+)")
_FINISHED = re.compile(r"training finished(.*)")
_FAILED = re.compile(r"training failed(.*)")
_FINISHED_BEFORE = re.compile(r"tpu-stack: (the job \S+ has finished already)")
_NEXT = "set training.job to run another one"
# systemd leaves a unit alone after an exit code that the unit names, and after too many starts. The
# first is what the runner writes (agent's common.sh); not every image shows the others here.
_GAVE_UP = re.compile(
    r"tpu-stack: the trainer is not started again"
    r"|training\.service: (Start request repeated too quickly|Failed with result 'start-limit-hit'"
    r"|Main process exited, code=exited, status=2)"
)
# The guest agent, google_metadata_script_runner/main.go; then that of older images.
_SCRIPT_FAILED = re.compile(
    r'Script "startup-script" failed with error: (.*)'
    r"|startup-script (exit status [1-9]\d*|signal.*)"
)
_SCRIPT_SAID = re.compile(r"startup-script: (.*\S)")


@dataclass(frozen=True)
class Progress:
    """One line of progress: the step, of how many, and the trainer's figures."""

    step: int
    steps: int
    figures: dict[str, str]

    def __str__(self) -> str:
        """Return it in one line."""
        return f"training {self.step}/{self.steps} {self.summary}"

    @property
    def summary(self) -> str:
        """The figures in one line."""
        return " ".join(f"{name}={value}" for name, value in self.figures.items())


@dataclass(frozen=True)
class Ended:
    """The training is over on this VM."""

    succeeded: bool
    message: str


def current_boot(text: str) -> str:
    """Return what a serial port holds of the last boot; all of it if it shows no boot."""
    for marker in _BOOTS:
        if found := list(re.finditer(marker, text)):
            return text[found[-1].start() :]
    return text


class Story:
    """Understands each line by those before it."""

    def __init__(self) -> None:
        self._failure = ""
        self._script = ""

    def read(self, line: str) -> Progress | Ended | None:
        """Return what a line says about the training; None if nothing."""
        if _BOOT.search(line):
            self._failure = self._script = ""
        if said := _SCRIPT_SAID.search(line):
            self._script = said[1]
        if found := _PROGRESS.search(line):
            step, steps, rest = found.groups()
            return Progress(int(step), int(steps), dict(_FIELD.findall(rest)))
        if found := _FAILED.search(line):
            # Over only when nothing starts the trainer again.
            self._failure = found[1].strip(" :")
            return None
        return self._end(line)

    def _end(self, line: str) -> Ended | None:
        if found := _FINISHED.search(line):
            return Ended(True, found[1].strip(" :"))
        if found := _FINISHED_BEFORE.search(line):
            return Ended(True, f"earlier: {found[1]}. Nothing was trained now; {_NEXT}")
        if found := _SCRIPT_FAILED.search(line):
            why = found[1] or found[2]
            return Ended(
                False, f"the start-up script failed: {self._script or 'no output'} ({why})"
            )
        if _GAVE_UP.search(line):
            return Ended(False, self._failure or line.strip())
        return None
