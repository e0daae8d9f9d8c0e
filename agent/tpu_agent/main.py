"""The agent's program, and what each of its arguments starts.

none                  enforces limits, recreates lost TPUs and runs the trainer, each in a thread
wake                  starts stopped TPUs
jobs [here]           runs the queue's jobs; `here`: on the TPU VM itself
try FOLDER            supervises one attempt of a job
managed BUCKET JOB    runs one job in a container of Vertex AI
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from urllib.error import HTTPError

from tpu_agent import slice as slices, tpus as forms
from tpu_agent.jobs import attempt, hosts, runner, vertex
from tpu_agent.jobs.environment import of_jax
from tpu_agent.jobs.identity import Identity, JobMetadata
from tpu_agent.ledger import Ledger
from tpu_agent.limits import LimitEnforcer
from tpu_agent.recovery import Recovery, World
from tpu_agent.trainer import Others, Surroundings, TpuState, Trainer, tpu_state
from tpu_core import causes, lease, paths, records, times
from tpu_core.bucket import Bucket
from tpu_core.contract import AS_ROOT, Environment, Limits, Messages, Metadata
from tpu_core.google import Call, Client, Json, MachineToken, MetadataServer, Transport, message
from tpu_core.tpu import Place, look_up, state_of

_TRAINER_RETRY_SECONDS = 5.0


# --- The machine that the agent runs on: its metadata, its account, its power switch

# A job that asks through its own metadata server may wait there for a change for a minute.
_METADATA_SECONDS = 120.0
BASE = Path(os.environ.get(Environment.BASE) or Path(sys.argv[0]).parent)
"""Where the agent keeps what outlives its process; its own file is in memory."""


class Machine:
    """The machine that this process runs on. Everything it reads raises OSError."""

    def __init__(self) -> None:
        self._etag = ""
        self._server = MetadataServer()
        self.client = Client(Transport(MachineToken(self.entry)))

    def metadata(self, path: str) -> tuple[str, str]:
        """Return an entry of the metadata server, and its ETag."""
        return self._server.read(path, _METADATA_SECONDS)

    def entry(self, path: str) -> str:
        """Return an entry below `instance/`."""
        return self.metadata(f"instance/{path}")[0]

    def attribute(self, name: str) -> str:
        """Return a metadata value."""
        return self.entry(f"attributes/{name}")

    def optional(self, name: str) -> str | None:
        """Return a metadata value; None if there is none."""
        try:
            return self.attribute(name)
        except HTTPError as error:
            if error.code == 404:
                return None
            raise

    def place(self) -> Place:
        """Return where the stack's TPUs and bucket are."""
        bucket = self.attribute(Metadata.BUCKET_URL).removeprefix("gs://")
        project, zone = (self.attribute(name) for name in (Metadata.TPU_PROJECT, Metadata.TPU_ZONE))
        form = self.optional(Metadata.TPU_FORM) or ""
        return Place(project, zone, bucket, self.further_zones, self._as_tpu(), form)

    def _as_tpu(self) -> Json | None:
        """Return the TPU as the TPU API would say it; None unless this machine is a host of it."""
        if self.optional(Metadata.IS_TPU) is None:
            return None
        ends = [{"ipAddress": host} for host in self.hosts()]
        # Another machine of the same name has another number, as another TPU another time.
        return {"state": "READY", "createTime": self.entry("id"), "networkEndpoints": ends}

    def hosts(self) -> list[str]:
        """Return where the hosts of the TPU are that this machine is one of.

        The endpoints of a slice were seen as bare names, and as `NUMBER:ID:ADDRESS` by JAX
        (_src/clusters/cloud_tpu_cluster.py): the address is the last part of either.
        """
        hosts = (self.optional(Metadata.ENDPOINTS) or "").split(",")
        if len(hosts) == 1:
            return [self.entry("network-interfaces/0/ip")]
        return [host.rpartition(":")[2] for host in hosts]

    def is_of_spot_slice(self) -> bool:
        """Return whether this is one of several hosts that Google does not bring back.

        Source: docs.cloud.google.com/compute/docs/metadata/predefined-metadata-keys (2026-11-24).
        """
        if self.optional(Metadata.IS_TPU) is None:
            return False
        several = "," in (self.optional(Metadata.ENDPOINTS) or "")
        return several and self.entry("scheduling/preemptible") == "TRUE"

    def further_zones(self) -> list[str]:
        """Return the zones that the TPUs may be in besides the first; none for most stacks."""
        return (self.optional(Metadata.TPU_ZONES) or "").split(",")[1:]

    def tpus(self) -> list[str]:
        """Return the names of the trainer's TPUs."""
        names = self.optional(Metadata.TPU_NAMES) or self.attribute(Metadata.TPU_NAME)
        return names.split(",")

    def has_limits(self) -> bool:
        """Return whether the agent has anything to enforce or recover."""
        return self.optional(Metadata.LIMITS) is not None

    def limits(self, seconds: int) -> Limits:
        """Return the limits: at once at first, then on a change or after so many seconds."""
        path = f"instance/attributes/{Metadata.LIMITS}"
        text, self._etag = self._server.wait(path, self._etag, seconds)
        limits: Limits = json.loads(text)
        return limits

    def trainer_arguments(self) -> list[str]:
        """Return the zones in which the trainer looks for its TPU, if it may move."""
        zones = self.optional(Metadata.TPU_ZONES)
        return [f"--tpu-zone={zones}"] if zones else []

    def trainer_environment(self) -> dict[str, str]:
        """Return what the start-up script doesn't know: what may change, and a slice's hosts."""
        note = self.optional(Metadata.COST_NOTE)
        told = {} if note is None else {Environment.COST_NOTE: note}
        hosts = of_jax(self.hosts(), _worker_number(self)) if self.trains_on_jax() else {}
        return {**told, **hosts}

    def trains_on_jax(self) -> bool:
        """Return whether the trainer runs on JAX, and so on each host of the TPU."""
        return self.optional(Metadata.BACKEND) == "jax"

    @staticmethod
    def turn_off() -> None:
        """Turn the machine off."""
        subprocess.run(["systemctl", "poweroff"], check=True)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since the boot."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


# Each writes a line to the journal and the serial port.
say = partial(print, "tpu-stack agent:", flush=True)
say_of_trainer = partial(print, "tpu-stack:", flush=True)
say_of_jobs = partial(print, "tpu-stack jobs:", flush=True)


def main() -> None:
    """Do what the arguments say."""
    if sys.argv[1:2] in (["jobs"], ["try"], ["managed"]):
        run_jobs(sys.argv)
        return
    machine = Machine()
    events = Events(machine.optional, machine.client.call, say)
    keeper = _keeper(machine, events)
    if sys.argv[1:] == ["wake"]:
        keeper.wake()
        return
    # First, whatever happens to the rest, what ends costs.
    threading.Thread(target=lambda: _or_die(keeper.keep), name="limits", daemon=True).start()
    threading.Thread(target=lambda: _or_die(keeper.recover), name="recovery", daemon=True).start()
    if keeper.place.form:
        # The machines of the TPU train. SIGTERM ends this process, which has nothing to clear up.
        signal.pause()
    if machine.optional(Metadata.RUNS_TRAINING) is None:
        tell = partial(events.report, "endpoint")
        world = World(time.time, say_of_trainer, forms.why_silent, random.random, tell)
        about = keeper.place, machine.client.call, machine.tpus()[0], world, time.sleep
        threading.Thread(target=watch_port, args=about, daemon=True).start()
    if machine.trains_on_jax() and machine.is_of_spot_slice():
        number, tpus = _worker_number(machine), _tpus(machine, is_here=True)
        watch = partial(watch_peers, machine, BASE / "jobs", number, tpus, time.sleep)
        threading.Thread(target=lambda: _or_die(watch), name="peers", daemon=True).start()
    trainer = keeper.until_it_works(lambda: _trainer(machine, keeper, events))
    keeper.trains = lambda: trainer.running or _runs_jobs()
    _run(trainer)


def _keeper(machine: Machine, events: Events) -> Keeper:
    place = machine.place()
    bucket = Bucket(place.bucket, machine.client.send)
    ledger = Ledger(bucket, machine.attribute(Metadata.JOB), time.time, say)
    tell = partial(events.report, "recovery")
    world = World(time.time, say, forms.why_silent, random.random, tell)
    keeper = Keeper(machine, place, say)
    keeper.enforcer = LimitEnforcer(
        place,
        machine.client,
        # Looked up at each call: `main` sets another one later.
        lambda: keeper.trains(),
        time.time,
        say,
        partial(events.report, "limits"),
        keeper.sleep,
        ledger,
    )
    keeper.recovery = Recovery(place, machine.client, world, ledger)
    return keeper


def _trainer(machine: Machine, keeper: Keeper, events: Events) -> Trainer | slices.Follower:
    bucket = Bucket(keeper.place.bucket, machine.client.send)
    count = len(machine.hosts()) if machine.trains_on_jax() else 1
    tpu, others = machine.attribute(Metadata.TPU_NAME), None
    if count > 1 and (number := _worker_number(machine)):
        own = machine.trainer_environment, machine.trainer_arguments
        world = slices.World(time.time, say_of_trainer, *own)
        return slices.Follower(BASE / "trainer", bucket, tpu, number, world)
    if count > 1:
        others = Others(bucket, tpu, count, time.monotonic)

    def finish(path: str) -> None:
        bucket.write(path, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n".encode())

    job = machine.attribute(Metadata.JOB)

    def tell(text: str) -> None:
        events.report(
            "training", f"the training {job} {text}\ngs://{keeper.place.bucket}/jobs/{job}"
        )

    around = Surroundings(
        now=time.time,
        say=say_of_trainer,
        tell=tell,
        chance=random.random,
        tpu=keeper.tpu_state,
        renew=keeper.renew,
        going_down=lambda: machine.entry("preempted") == "TRUE",
        budgets=keeper.budgets,
        finish=finish,
        environment=machine.trainer_environment,
        arguments=machine.trainer_arguments,
        oom_kills=oom_kills,
        others=others,
    )
    return Trainer(BASE / "trainer", around)


def _run(trainer: Trainer | slices.Follower) -> None:
    """Look after the trainer in this thread, which gets signals, until the agent is to end."""
    wake = _Alarm()
    while not wake.told_to_end(_look(trainer)):
        pass
    trainer.stop()


def _look(trainer: Trainer | slices.Follower) -> float:
    """Look after the trainer; return the pause. No failure, such as a full disk, ends limits."""
    try:
        return trainer.look()
    except Exception:
        traceback.print_exc()
        return _TRAINER_RETRY_SECONDS


def _or_die(work: Callable[[], None]) -> None:
    """End the whole agent if a thread fails: systemd restarts it."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        # Not sys.exit, which would end this thread alone.
        os._exit(1)


def _runs_jobs() -> bool:
    return attempt.any_running(BASE / "jobs")


class _Alarm:
    """Wakes the main thread when a child ends, and when the machine goes down."""

    def __init__(self) -> None:
        self._bell, ringer = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(ringer, False)
        # `select` waits on after a signal (PEP 475): only the byte in the pipe ends it. A full pipe
        # wakes it just as well.
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def told_to_end(self, seconds: float) -> bool:
        """Wait for a signal at most so long; return whether the agent is to end."""
        select.select([self._bell], [], [], seconds)
        try:
            heard = os.read(self._bell, 4096)
        except BlockingIOError:
            return False
        return bool({signal.SIGTERM, signal.SIGINT} & set(heard))


_LOOK_SECONDS = 60
# A kill of a TPU is noticed within 3 s, at a quarter of what the agent may cost.
_RECOVERY_SECONDS = 2.5
# While Google deletes or creates a TPU, for which the trainer waits.
_MAKING_SECONDS = 1.0
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 15.0, 120.0
_T = TypeVar("_T")


class Keeper:
    """Enforces limits and recreates lost TPUs, as the metadata says.

    `keep` and `recover` have a thread each, so that no failure of recovery stops the limits.
    Other threads use the rest.
    """

    enforcer: LimitEnforcer
    recovery: Recovery

    def __init__(self, machine: Machine, place: Place, say: Callable[[str], None]) -> None:
        self.place = place
        self.trains: Callable[[], bool] = _runs_jobs
        """Whether the trainer or a job of the queue runs on this machine."""
        self._machine, self._say = machine, say
        self._limits: Limits = {}
        # `renew` and `sleep` come from other threads, and Recovery is for one at a time.
        self._recovering = threading.Lock()
        self._bell = threading.Event()
        self._found = TpuState(None)

    def budgets(self) -> Mapping[str, int] | None:
        """Return failures and preemptions a day; None if lost TPUs are not recreated."""
        return self._limits.get("recovery")

    def wake(self) -> None:
        """Start stopped TPUs: there is something to train."""
        self.until_it_works(lambda: self.enforcer.wake(self._machine.limits(_LOOK_SECONDS)))

    def keep(self) -> None:
        """Keep limits until the time is up; return at once where none are set."""
        if not self.until_it_works(self._machine.has_limits):
            return
        while not self.until_it_works(self._enforce):
            pass
        self._say("shutting this machine down")
        self.until_it_works(self._machine.turn_off)

    def recover(self) -> None:
        """Recreate lost TPUs forever, while the metadata asks for it."""
        while True:
            self._bell.wait(self.until_it_works(self._recover))
            self._bell.clear()

    def _enforce(self) -> bool:
        """Wait for other limits or for the next look's time, and look."""
        limits = self._machine.limits(_LOOK_SECONDS)
        if limits != self._limits:
            self._limits = limits
            self._bell.set()
        # Compute Engine ends its own machines; nothing else here is left to enforce.
        over = not self.place.form and self.enforcer.look(limits)
        ended = over or self.recovery.ended
        return ended and bool(limits.get("turnOff"))

    def _recover(self) -> float:
        """Look once; return the seconds until the next look."""
        limits = self._limits
        if "recovery" not in limits:
            return _LOOK_SECONDS
        with self._recovering:
            self.recovery.look(
                limits["tpus"],
                limits["recovery"],
                limits.get("request"),
                limits.get("zoneMinutes", 0.0),
                limits.get("timeToLiveHours", float("inf")),
            )
            return _MAKING_SECONDS if self.recovery.hurries else _RECOVERY_SECONDS

    def renew(self, why: str) -> None:
        """Recreate the trainer's TPUs, which look healthy and are not. Raises OSError."""
        limits = self._limits
        if "recovery" in limits:
            with self._recovering:
                self.recovery.renew(limits["tpus"], limits["recovery"], limits.get("request"), why)
            self._bell.set()

    def sleep(self) -> None:
        """Let TPUs that a limit is about to delete come back for the next job. Raises OSError."""
        limits = self._limits
        if "recovery" in limits:
            with self._recovering:
                self.recovery.sleep(limits["tpus"], limits.get("request"))

    def tpu_state(self) -> TpuState:
        """Return what keeps the trainer's TPUs from work, and ring if that is new. Raises OSError.

        A trainer that has lost its TPU is the first to know.
        """
        found = self._tpu_state()
        if found != self._found:
            self._found = found
            self._bell.set()
        return found

    def _tpu_state(self) -> TpuState:
        recovered = self.budgets() is not None
        for name in self._machine.tpus():
            _, status, node = look_up(self.place, self._machine.client.call, name)
            if status not in (200, 404):
                raise OSError(f"{causes.cause_of(status, node)}, HTTP status {status} for {name}")
            state = state_of(node) if status == 200 else None
            found = tpu_state(name, state, str(node.get("health", "")), recovered=recovered)
            if found.ending is not None:
                return found
        return TpuState(None)

    def until_it_works(self, step: Callable[[], _T]) -> _T:
        """Repeat a step until it works: grants may not count yet, a service may be unavailable.

        Whatever goes wrong, a machine that costs is not left alone.
        """
        tries, last = 0, ""
        while True:
            try:
                return step()
            except Exception as error:
                if last != (text := str(error) or repr(error)):
                    last = text
                    self._say(f"retrying: {last}")
                time.sleep(times.backoff(tries, _RETRY_SECONDS, _LONGEST_RETRY_SECONDS))
                tries += 1


_PORT_LOOK_SECONDS = 5.0
# A -pod runtime serves when it is READY; other TPU VMs install their worker first.
_PORT_PATIENCE, _PATIENCE_WITH_SCRIPT = 110.0, 900.0


def watch_port(
    place: Place, call: Call, name: str, world: World, sleep: Callable[[float], None]
) -> None:
    """Say at once if this VM can't reach a READY TPU: both cost, and set-up is long.

    Google documents no client of a TPU VM's port 8470 on another machine. Returns once the TPU
    answers, or it was said that it does not.
    """
    ready: float | None = None
    while True:
        try:
            found = (forms.find_node(here, call, name) for here in place.everywhere())
            seen = next((one for one in found if one and one.phase == "ready"), None)
        except OSError:  # Its grants may not count yet; the trainer says what is wrong.
            seen = None
        why = forms.why_ill(seen, world.silent) if seen else None
        if seen and not why:
            return
        ready = (ready or world.now()) if seen else None
        script = Metadata.STARTUP_SCRIPT in seen.nodes[0].get("metadata", {}) if seen else False
        if ready and world.now() - ready >= (_PATIENCE_WITH_SCRIPT if script else _PORT_PATIENCE):
            last = (
                f"{name} is READY, but {why}: this VM can't drive it. Set training.runOn: tpu "
                "(for TPU VMs only; docs/verification.md#vm-drives-a-tpu-vm), or check the "
                "firewall rules if network.create is false"
            )
            world.say(last)
            world.tell(last)
            return
        sleep(_PORT_LOOK_SECONDS)


# --- What the agent reports: one entry in the stack's log for each event
#
# Cloud Monitoring delivers the entries by the notification channels that the stack declares.
# https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/write

Event = Literal["endpoint", "job", "limits", "recovery", "training"]
_LOGS = "https://logging.googleapis.com/v2/entries:write"
# The longest value of a label that a notification can use; the log has the whole text.
_LONGEST_SUBJECT = 200


class Events:
    """The stack's log, as the metadata names it at the time of each event.

    Args:
        attribute: returns a metadata value of the machine, or None.
        call: calls Google as the machine's account.
        say: writes a line to the journal.
    """

    def __init__(
        self, attribute: Callable[[str], str | None], call: Call, say: Callable[[str], None]
    ) -> None:
        self._attribute, self._call, self._say = attribute, call, say

    @property
    def settings(self) -> Messages:
        """What the stack wants reported. Raises OSError or ValueError."""
        settings: Messages = json.loads(self._attribute(Metadata.MESSAGES) or "{}")
        return settings

    def report(self, event: Event, text: str) -> None:
        """Write an entry, if the stack has a log for them. It never fails."""
        try:
            if log := self.settings.get("log"):
                self._write(log, event, text)
        except Exception as error:  # Whatever it is: an entry is not worth an agent.
            self._say(f"an event could not be logged: {error}")

    def _write(self, log: str, event: Event, text: str) -> None:
        entry = {
            "logName": log,
            "resource": {"type": "global", "labels": {"project_id": log.split("/")[1]}},
            "severity": "NOTICE",
            "jsonPayload": {
                "event": event,
                "subject": text.partition("\n")[0][:_LONGEST_SUBJECT],
                "text": text,
            },
        }
        status, answer = self._call("POST", _LOGS, json.dumps({"entries": [entry]}))
        if status != 200:
            raise OSError(f"HTTP status {status} for {log}: {message(answer)}")


# The processes of the queue, which share nothing with those above but the machine.

_QUEUE_STEP_SECONDS = 0.25
_QUEUE_RETRY_SECONDS = 5.0
# A try repeats its own calls, as nothing else does.
_PATIENCE_SECONDS = 60.0


def run_jobs(arguments: list[str]) -> None:
    """Do what the agent's arguments say, the first of which is the agent's own file."""
    if arguments[1] == "try":
        _run_try(Path(arguments[2]))
    elif arguments[1] == "managed":
        bucket, name = arguments[2:4]
        sys.exit(vertex.run(Path(arguments[0]), bucket, name, _store_of(Machine())))
    else:
        _run_queue(Path(arguments[0]), is_here=arguments[2:] == ["here"])


def _run_try(folder: Path) -> None:
    """Run one attempt, as the process that `Attempt.start` starts."""
    machine, account = Machine(), os.environ.get(Environment.JOB_ACCOUNT, AS_ROOT)
    server = (
        JobMetadata(account, machine.client.call, machine.metadata) if account != AS_ROOT else None
    )
    who = Identity(server, MachineToken(machine.entry))
    attempt.supervise(folder, _store_of(machine), who)


def _store_of(machine: Machine) -> Callable[[str], Bucket]:
    """Return what opens a bucket by its name, as the machine's account."""
    return lambda name: Bucket(name, Transport(MachineToken(machine.entry), _PATIENCE_SECONDS))


def _worker_number(machine: Machine) -> int:
    """Return this host's number; 0 if it is the only one and has none.

    libtpu and JAX take it from there, too (JAX: _src/clusters/cloud_tpu_cluster.py).
    """
    number = machine.optional(Metadata.WORKER_NUMBER)
    # Each host of a slice would take itself for the first.
    if number is None and "," in (machine.optional(Metadata.ENDPOINTS) or ""):
        raise SystemExit(f"{Metadata.WORKER_NUMBER} is not set, but the TPU has several hosts")
    return int(number or 0)


def _run_queue(program: Path, *, is_here: bool) -> None:
    """Run jobs until this process is ended."""
    machine = Machine()
    folder = program.parent / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    # Two runners on one machine would have one lease. No job can lock what it can't open.
    lock = os.open(folder / "lock", os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    number = _worker_number(machine) if is_here else 0
    tpus = _tpus(machine, is_here=is_here)
    if is_here and machine.is_of_spot_slice():
        watch = partial(watch_peers, machine, folder, number, tpus, time.sleep)
        threading.Thread(target=lambda: _or_die(watch), name="peers", daemon=True).start()
    jobs = (
        _host(machine, folder, program, number, tpus)
        if number
        else _runner(machine, folder, program, tpus)
    )
    last = ""
    say_of_jobs("waiting for jobs")
    while True:
        try:
            jobs.step()
            last, pause = "", _QUEUE_STEP_SECONDS
        except OSError as error:
            if last != str(error):
                last = str(error)
                say_of_jobs(f"retrying: {last}")
            # Runners that one outage has stopped do not all ask again at the same moment.
            pause = _QUEUE_RETRY_SECONDS * random.uniform(0.5, 1.0)
        time.sleep(pause)


def watch_peers(
    machine: Machine, folder: Path, number: int, tpus: runner.Tpus, sleep: Callable[[float], None]
) -> None:
    """Turn this host of a spot slice off once another one is gone for good.

    Args:
        machine: this host.
        folder: of the attempts.
        number: the host's.
        tpus: learns that no attempt may begin here any more.
        sleep: lets the seconds between two looks pass.
    """
    store, name = Bucket(machine.place().bucket, machine.client.send), machine.entry("name")
    count = machine.attribute(Metadata.ENDPOINTS).count(",") + 1
    tpu = machine.attribute(Metadata.TPU_NAME)
    others, said = hosts.Peers(store, tpu, number, count, time.monotonic), ""
    while True:
        try:
            tpus.why_ending = why = others.look()
            if why:
                hosts.turn_host_off(store, folder, name, why, say_of_jobs, machine.turn_off)
            said = ""
        except (OSError, subprocess.SubprocessError) as error:
            if said != str(error):
                said = str(error)
                say_of_jobs(f"the other hosts can't be watched: {said}")
        sleep(hosts.BEAT)


def _tpus(machine: Machine, *, is_here: bool) -> runner.Tpus:
    place, tpu = machine.place(), machine.attribute(Metadata.TPU_NAME)
    store = Bucket(place.bucket, machine.client.send)

    def want() -> None:
        store.write(paths.WANTED, records.dump({"at": time.time()}))

    return runner.Tpus(place, tpu, machine.client.call, want, is_here=is_here)


def _host(
    machine: Machine, folder: Path, program: Path, number: int, tpus: runner.Tpus
) -> hosts.Host:
    """Return what runs jobs on another host of a slice than worker 0."""
    place, tpu = machine.place(), machine.attribute(Metadata.TPU_NAME)
    world = hosts.World(
        os.environ, lambda one: one.start(program), time.sleep, time.time, say_of_jobs
    )
    store = Bucket(place.bucket, machine.client.send)
    return hosts.Host(store, tpu, number, tpus.ready, folder, world)


def _runner(machine: Machine, folder: Path, program: Path, tpus: runner.Tpus) -> runner.Runner:
    place = machine.place()
    me = lease.Holder(machine.entry("id"), machine.entry("name"))
    tpu = machine.attribute(Metadata.TPU_NAME)
    store = Bucket(place.bucket, machine.client.send)
    tell = partial(Events(machine.optional, machine.client.call, say_of_jobs).report, "job")
    world = runner.World(attempt.now, time.time, say_of_jobs, lambda one: one.start(program), tell)
    return runner.Runner(store, me, tpu, tpus, folder, world)
