"""Kill agents at random points while their trainer starts, fails and finishes.

Each agent is a process of its own that runs the real loop; the trainer is a shell that takes notes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE

_ROOT = Path(__file__).parents[1]
# A trainer needs a tenth of a second or more.
_LONGEST = 0.25
# The real loop with pauses that are a hundred times shorter, on a disk and without a network.
_AGENT = """
import sys, time
from pathlib import Path
from tpu_agent.trainer import Surroundings, TpuState, Trainer
folder = Path(sys.argv[1])
trainer = Trainer(folder, Surroundings(
    now=lambda: time.time() * 100, say=lambda text: None, chance=lambda: 0.0,
    tpu=lambda: TpuState(None), renew=lambda why: None, going_down=lambda: False,
    budgets=lambda: None, finish=lambda path: (folder / "finished").touch(), environment=dict,
    arguments=list, oom_kills=lambda: 0, tell=lambda text: None,
))
print(flush=True)
while not (folder / "finished").exists():
    trainer.look()
    time.sleep(0.002)
"""
# A directory can be made only once, so that two at once are seen. It is done once all are killed.
_TRAINER = """
cd {folder} || exit 2
mkdir alone || echo two >>twice
echo begun >>begun
sleep 0.05
rmdir alone
echo ended >>ended
[ ! -e done ] && exit 75
exit 0
"""


@dataclass(frozen=True)
class Told:
    """What became of the trainers of killed agents.

    Attributes:
        begun, ended: how many of them did.
        twice: how often one began while another ran.
        finished: whether the job was marked as finished in the end.
    """

    begun: int
    ended: int
    twice: int
    finished: bool


def kill_agents(folder: Path, kills: int, seed: int) -> Told:
    """Kill so many agents, then let another one finish the job."""
    chance = random.Random(seed)
    command = ["/bin/sh", "-c", _TRAINER.format(folder=folder)]
    order = {"finished": "f", "environment": {}, "command": command}
    (folder / "order.json").write_text(json.dumps(order), "utf-8")
    for _ in range(kills):
        agent = _start(folder)
        # From here on it acts; a loaded machine may need long until then.
        assert agent.stdout is not None
        assert agent.stdout.readline(), "the agent has ended"
        time.sleep(chance.uniform(0.0, _LONGEST))
        agent.kill()
        agent.stdout.close()
        agent.wait()
    (folder / "done").touch()
    with _start(folder) as last:
        last.wait(timeout=PATIENCE)
    begun, ended, twice = (_lines(folder / name) for name in ("begun", "ended", "twice"))
    return Told(begun, ended, twice, (folder / "finished").exists())


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-c", _AGENT, str(folder)]
    places = os.pathsep.join(str(_ROOT / room) for room in ("agent", "core"))
    environment = {**os.environ, "PYTHONPATH": places}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines()) if path.exists() else 0
