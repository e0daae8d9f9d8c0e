"""What the Pulumi engine and Google's command line take, as they say themselves.

`recorded_commands.json` holds the commands that this repository names, each with its flags. After
naming another one, rewrite it: `python -m tests.unit.site.recorded` asks the `pulumi` and the
`gcloud` that are on PATH. Pulumi answers `--help`; the Google Cloud CLI ships the tree of its
commands as `data/cli/gcloud_completions.py`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("recorded_commands.json")
PROGRAMS = ("pulumi", "gcloud")
_WORD = re.compile(r"[a-z][a-z-]*")
_FLAG = re.compile(r"^ +(?:(-\w), )?(--[\w-]+)(?: ((?!  )\S+))?(?:   |$)", re.M)
_USAGE = re.compile(r"^Usage:\n  pulumi ([a-z][a-z -]*[a-z])\b(.*)$", re.M)
_AGAIN = "python -m tests.unit.site.recorded"
# A command of neither tool has subcommands of more words.
_DEEPEST = 5
# What `tpustack ssh` runs, which no page or message names.
RUN = {"gcloud": {"compute ssh", "alpha compute tpus tpu-vm ssh"}}


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        flags: `value`, `bool` or `optional` (a value may follow after `=`) by name.
        arguments: how many there may be at most; None if it is unknown or there is no limit.
    """

    flags: Mapping[str, str]
    arguments: int | None


@dataclass(frozen=True)
class Tool:
    """A program with the commands that are known of it, by their words."""

    name: str
    version: str
    commands: Mapping[str, Command]

    def refusal(self, words: list[str]) -> str | None:
        """Say why the program would not take the words; None if it would, or for a group of it."""
        path, rest = self._split(words)
        if not path:
            return f"{self.name} has no {rest[0]}" if rest else None
        command = self.commands.get(path)
        if command is None:
            group = any(name.startswith(f"{path} ") for name in self.commands)
            unknown = rest[0] if rest else path
            if group and not rest:
                return None
            return f"{self.name} {path} has no {unknown}, or it is not recorded yet ({_AGAIN})"
        return _refused(rest, command)

    def _split(self, words: list[str]) -> tuple[str, list[str]]:
        """Split words into those of the command and the rest."""
        length = 0
        for count in range(1, min(len(words), _DEEPEST) + 1):
            path = " ".join(words[:count])
            if any(name == path or name.startswith(f"{path} ") for name in self.commands):
                length = count
        return " ".join(words[:length]), words[length:]


def _refused(words: list[str], command: Command) -> str | None:
    left = list(words)
    arguments = 0
    while left:
        word = left.pop(0)
        if word == "--":
            return None
        if not word.startswith("-"):
            arguments += 1
            continue
        name, given, _ = word.partition("=")
        kind = command.flags.get(name) or _switched_off(name, command)
        if kind is None:
            return f"no flag {name}"
        if kind == "value" and not given:
            if not left or left[0].startswith("-"):
                return f"{name} needs a value"
            left.pop(0)
    if command.arguments is not None and arguments > command.arguments:
        return f"at most {command.arguments} arguments"
    return None


def _switched_off(name: str, command: Command) -> str | None:
    """gcloud's switches have the opposite, too."""
    switch = name.replace("--no-", "--", 1)
    return "bool" if switch != name and command.flags.get(switch) == "bool" else None


def recorded() -> dict[str, Tool]:
    """Return the tools as they were recorded."""
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    return {name: tool(name, said) for name, said in found.items()}


def tool(name: str, said: Mapping[str, Any]) -> Tool:
    """Return a tool as `ask_pulumi` or `ask_gcloud` describe it."""
    commands = {
        path: Command({**said["flags"], **one["flags"]}, one["arguments"])
        for path, one in said["commands"].items()
    }
    return Tool(name, said["version"], commands)


def ask_pulumi(program: str, paths: Iterable[str]) -> dict[str, Any]:
    """Return what `pulumi` says of these commands; those that it has not are left out."""
    commands = {}
    for path in sorted(paths):
        said = _output(program, *path.split(), "--help")
        usage = _USAGE.search(said)
        aliases = re.search(r"^Aliases:\n  (.*)$", said, re.M)
        last = path.split()[-1]
        if usage is None or not (usage[1] == path or (aliases and last in aliases[1].split(", "))):
            continue
        places = re.findall(r"[\[<](?!flags|command)[^\]>]+[\]>](\.\.\.)?", usage[2])
        endless = "..." in usage[2]
        commands[path] = {"flags": _flags(said), "arguments": None if endless else len(places)}
    return {"version": _output(program, "version").strip(), "flags": {}, "commands": commands}


def ask_gcloud(program: str, paths: Iterable[str]) -> dict[str, Any]:
    """Return what the Google Cloud CLI's own tree says of these commands."""
    folder = Path(program).resolve().parent.parent / "data" / "cli"
    reader = "import json, gcloud_completions as g; print(json.dumps(g.STATIC_COMPLETION_CLI_TREE))"
    tree = json.loads(_output(sys.executable, "-c", reader, cwd=folder))
    commands = {}
    for path in sorted(paths):
        found: Any = tree
        for word in path.split():
            found = (found or {}).get("commands", {}).get(word)
        # A group is not a command.
        if found and not found["commands"]:
            commands[path] = {"flags": _kinds(found["flags"]), "arguments": None}
    version = _output(program, "version").splitlines()[0]
    return {"version": version, "flags": _kinds(tree["flags"]), "commands": commands}


def _flags(said: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for short, name, kind in _FLAG.findall(said):
        what = "optional" if "[=" in kind else "value" if kind else "bool"
        found |= {flag: what for flag in (short, name) if flag}
    return dict(sorted(found.items()))


def _kinds(flags: Mapping[str, Any]) -> dict[str, str]:
    return {name: "bool" if kind == "bool" else "value" for name, kind in sorted(flags.items())}


def _output(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return done.stdout


def candidates(words: list[str]) -> list[str]:
    """Return every beginning of the words that could be a command."""
    found = []
    for count in range(1, min(len(words), _DEEPEST) + 1):
        if not _WORD.fullmatch(words[count - 1]):
            break
        found.append(" ".join(words[:count]))
    return found


def main() -> None:
    """Rewrite the record."""
    from tests.unit.site.named import named

    paths: dict[str, set[str]] = {name: set(RUN.get(name, ())) for name in PROGRAMS}
    for one in named():
        if one.program in paths:
            paths[one.program].update(candidates(one.words))
    tools = {"pulumi": ask_pulumi, "gcloud": ask_gcloud}
    found = {
        name: ask(shutil.which(name) or sys.exit(f"{name} is not on PATH"), paths[name])
        for name, ask in tools.items()
    }
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
