"""Hosts that train together: they meet, miss each other, and say why they end."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.patience import until
from tpu_training.__main__ import main
from tpu_training.cluster import hosts
from tpu_training.cluster.hosts import LostHostError, Place, find_place
from tpu_training.errors import EndpointError, InputError

ADDRESS, NUMBER, POSITION = hosts.VARIABLES


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", address)
    # These hosts are threads of one process, which lives on.
    monkeypatch.setattr("tpu_training.cluster.hosts.atexit.register", lambda _: None)
    monkeypatch.setattr("tpu_training.cluster.hosts._met", None)
    monkeypatch.setattr("tpu_training.cluster.hosts._ending", lambda message, code: None)
    monkeypatch.setattr("tpu_training.cluster.hosts._GRACE_SECONDS", 0.1)
    monkeypatch.setattr("tpu_training.cluster.hosts._LEADERS_GRACE_SECONDS", 0.1)
    monkeypatch.setattr("tpu_training.cluster.hosts._NEWS_SECONDS", 10.0)
    return address


Meet = Callable[..., list["Future[hosts.Hosts]"]]


@pytest.fixture
def meet(coordinator: str) -> Iterator[Meet]:
    """Lets the hosts of these numbers come, for some seconds."""
    with ThreadPoolExecutor() as threads:
        made: list[Future[hosts.Hosts]] = []

        def come(*numbers: int, count: int = 3, seconds: float = 30) -> list[Future[hosts.Hosts]]:
            places = [Place(coordinator, count, number) for number in numbers]
            made.extend(threads.submit(hosts.meet, place, seconds) for place in places)
            return made[-len(numbers) :]

        yield come
        for future in made:
            if not future.exception():
                kill(future.result())


def kill(host: hosts.Hosts) -> None:
    """Close the connections of a host, as the end of its process does."""
    for link in host._links.values():
        # Another thread still waits for it.
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)


def listening(host: hosts.Hosts) -> list[str]:
    """Begin a job again whose end by another host is noted."""
    heard: list[str] = []
    host._end = lambda message, code: heard.append(f"{code} {message}")
    return heard


def test_without_the_variables_a_process_is_alone() -> None:
    assert find_place({}) is None
    assert find_place({ADDRESS: "10.0.0.2:8476"}) is None
    assert find_place({ADDRESS: "10.0.0.2:8476", NUMBER: "1", POSITION: "0"}) is None


def test_with_the_variables_a_process_is_one_of_several() -> None:
    found = find_place({ADDRESS: "10.0.0.2:8476", NUMBER: "4", POSITION: "3"})
    assert found == Place("10.0.0.2:8476", 4, 3)
    assert str(found) == "host 3 of 4"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("", "2", "0"), "JAX_COORDINATOR_ADDRESS is not set"),
        (("h:1", "2", ""), "JAX_PROCESS_ID is not set"),
        (("h:1", "2", "2"), "JAX_NUM_PROCESSES=2, JAX_PROCESS_ID=2"),
        (("h:1", "two", "0"), "JAX_NUM_PROCESSES=two"),
        (("h", "2", "0"), "JAX_COORDINATOR_ADDRESS=h: expected HOST:PORT"),
        (("h:65536", "2", "0"), "JAX_COORDINATOR_ADDRESS=h:65536: expected HOST:PORT"),
    ],
)
def test_a_wrong_variable_is_named(values: tuple[str, str, str], said: str) -> None:
    with pytest.raises(InputError, match=f"--backend=jax: {re.escape(said)}"):
        find_place(dict(zip(hosts.VARIABLES, values, strict=True)))


def test_a_wrong_address_to_listen_at_is_named() -> None:
    values = dict(zip(hosts.VARIABLES, ("h:1", "2", "0"), strict=True))
    assert find_place({**values, "JAX_COORDINATOR_BIND_ADDRESS": ":8476"})
    with pytest.raises(InputError, match="JAX_COORDINATOR_BIND_ADDRESS=all: expected HOST:PORT"):
        find_place({**values, "JAX_COORDINATOR_BIND_ADDRESS": "all"})


def test_what_one_host_does_for_all_is_refused_on_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in zip(hosts.VARIABLES, ("h:1", "2", "0"), strict=True):
        monkeypatch.setenv(name, value)
    hosts.refuse_on_others("export")
    monkeypatch.setenv(POSITION, "1")
    with pytest.raises(InputError, match="export: this is host 1 of 2"):
        hosts.refuse_on_others("export")


def test_hosts_that_don_t_come_are_named_on_those_that_came(meet: Meet) -> None:
    said = [str(each.exception()) for each in meet(0, 1, count=4, seconds=1.5)]
    assert said[0] == said[1]
    assert re.match(
        r"--backend=jax: 2 of 4 hosts came to the coordinator 127\.0\.0\.1:\d+", said[0]
    )
    assert "host 2, 3 did not" in said[0]
    assert "firewall" in said[0]


def test_a_coordinator_that_does_not_answer_is_named(meet: Meet) -> None:
    (error,) = [each.exception() for each in meet(1, count=2, seconds=0.5)]
    assert isinstance(error, EndpointError)
    assert re.search(r"the coordinator 127\.0\.0\.1:\d+ .* did not answer host 1 of 2", str(error))


@pytest.mark.parametrize("index", [1, 4])
def test_a_host_that_counts_otherwise_is_told(meet: Meet, coordinator: str, index: int) -> None:
    (first,) = meet(0, count=2)
    with pytest.raises(EndpointError, match="JAX_NUM_PROCESSES=5 here, but 2 on host 0; set"):
        hosts.meet(Place(coordinator, 5, index), 5)
    (second,) = meet(1, count=2)
    assert [each.result().place.index for each in (first, second)] == [0, 1]


def test_a_stranger_at_the_port_is_none_of_the_hosts(meet: Meet, coordinator: str) -> None:
    host, port = coordinator.split(":")
    (first,) = meet(0, count=2)
    until(lambda: is_open(host, int(port)))
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        meet(1, count=2)
        assert first.result().place.index == 0


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def test_a_host_that_ends_without_a_word_is_missed_by_all(meet: Meet) -> None:
    first, second, third = (each.result() for each in meet(0, 1, 2))
    heard = [listening(each) for each in (first, third)]
    kill(second)
    until(lambda: all(heard))
    for said in heard:
        assert said[0].startswith("1 training failed: host 1 ended without a word")
        assert "all 3 hosts have to start again" in said[0]


def test_what_fails_on_one_host_is_said_on_all(meet: Meet) -> None:
    first, second, third = (each.result() for each in meet(0, 1, 2))
    heard = [listening(each) for each in (first, second)]
    third.fail(InputError("--data=x: there is\nno such file"))
    until(lambda: all(heard))
    for said in heard:
        assert "host 2 failed: --data=x: there is no such file" in said[0]


def test_an_error_of_jax_is_that_of_the_host_that_caused_it(meet: Meet) -> None:
    first, second = (each.result() for each in meet(0, 1, count=2))
    heard = listening(first)
    kill(second)
    with pytest.raises(LostHostError, match="host 1 ended without a word"):
        first.fail(ValueError("Gloo AllGather failed"))
    assert first._exit_code == 1
    assert not heard


def test_an_error_of_ones_own_stays_what_it_is(meet: Meet) -> None:
    first, second = (each.result() for each in meet(0, 1, count=2))
    kill(second)
    until(lambda: bool(first._lost))
    first.fail(InputError("callbacks: …"))
    assert first._exit_code == 2


def test_a_host_that_has_finished_may_leave(meet: Meet) -> None:
    first, second = (each.result() for each in meet(0, 1, count=2))
    heard = listening(first)
    second.finish()
    kill(second)
    until(lambda: first._gone == {1})
    assert not first._lost
    first.finish()
    assert not heard
    # But another job can't begin without it.
    with pytest.raises(LostHostError, match="host 1 ended"):
        first.begin(lambda message, code: None)


def test_a_process_that_failed_does_not_wait_for_the_others_at_its_exit(
    meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (each.result() for each in meet(0, 1, count=2))
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    second.fail(InputError("wrong"))
    second._exit()
    assert codes == [2]
    first.finish()
    first._exit()
    assert codes == [2]


def test_data_that_one_host_would_write_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in zip(hosts.VARIABLES, ("h:1", "2", "0"), strict=True):
        monkeypatch.setenv(name, value)
    given = ["--backend=jax", "--data=tfds:mnist", f"--model-dir={tmp_path}/results"]
    assert main(["train", *given]) == 2
    said = capsys.readouterr().err
    assert "--data=tfds:mnist: is written to the model directory first" in said
    assert "this is host 0 of 2" in said
    assert "tpu-training data convert" in said
    assert not [*tmp_path.iterdir()]
