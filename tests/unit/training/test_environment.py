from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from tpu_training.cluster.endpoint import Addresses, LocalTpu, NamedTpu, NoTpu, Target, find_target
from tpu_training.errors import InputError

CONFIG = json.dumps({"tpu_node_name": "conf", "project": "p", "zone": "z"})

hosts = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z0-9]{1,5}){1,3}", fullmatch=True)
addresses = st.builds(lambda host, port: f"{host}:{port}", hosts, st.integers(1, 65535))


@pytest.mark.parametrize(
    ("environ", "target"),
    [
        ({}, NoTpu()),
        ({"TPU_GRPC_URL": "grpc://10.0.0.2:8470"}, Addresses(("10.0.0.2:8470",), "TPU_GRPC_URL")),
        ({"TPU_NAME": "my-tpu"}, NamedTpu("my-tpu", None, None, "TPU_NAME")),
        (
            {"TPU_NAME": "my-tpu", "TPU_ZONE": "z", "TPU_PROJECT": "p"},
            NamedTpu("my-tpu", "p", "z", "TPU_NAME"),
        ),
        ({"TPU_NAME": "grpc://10.0.0.2:1"}, Addresses(("10.0.0.2:1",), "TPU_NAME")),
        ({"TPU_NAME": "local"}, LocalTpu("TPU_NAME", "TPU_NAME is local")),
        ({"TPU_CONFIG": CONFIG}, NamedTpu("conf", "p", "z", "TPU_CONFIG")),
        ({"COLAB_TPU_ADDR": "10.1.1.1:8470"}, Addresses(("10.1.1.1:8470",), "COLAB_TPU_ADDR")),
        ({"COLAB_TPU_ADDR": "tpu-host"}, Addresses(("tpu-host:8470",), "COLAB_TPU_ADDR")),
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"},
            Addresses(("10.0.0.2:8470", "10.0.0.3:8470"), "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"),
        ),
    ],
)
def test_each_platforms_variable_names_the_tpu(environ: dict[str, str], target: Target) -> None:
    assert find_target(None, None, None, environ) == target


def test_the_argument_wins_then_the_variables_in_their_order() -> None:
    environ = {
        "TPU_GRPC_URL": "10.0.0.1:1",
        "TPU_NAME": "name",
        "TPU_CONFIG": CONFIG,
        "COLAB_TPU_ADDR": "10.0.0.2:2",
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "10.0.0.3:3",
    }
    assert find_target("flag", "p", "z", environ) == NamedTpu("flag", "p", "z", "--tpu")
    order = list(environ)
    for position, source in enumerate(order):
        left = {name: environ[name] for name in order[position:]}
        target = find_target(None, None, None, left)
        assert not isinstance(target, NoTpu)
        assert target.source == source


def test_a_full_name_brings_its_own_project_and_zone() -> None:
    target = find_target("projects/p/locations/z/nodes/n", "other", "other", {})
    assert target == NamedTpu("n", "p", "z", "--tpu")


def test_an_address_without_a_port_gets_the_tpus_port() -> None:
    assert find_target("10.0.0.2", None, None, {}) == Addresses(("10.0.0.2:8470",), "--tpu")


@given(st.lists(addresses, min_size=1, max_size=4, unique=True), st.booleans())
def test_addresses_keep_the_order_of_the_workers(values: list[str], scheme: bool) -> None:
    text = ",".join(f"grpc://{value}" if scheme else value for value in values)
    target = find_target(text, None, None, {})
    assert isinstance(target, Addresses)
    assert list(target.addresses) == values
    assert target.url == ",".join(f"grpc://{value}" for value in values)


@given(st.text(min_size=1).filter(str.strip))
def test_any_text_is_a_target_or_a_clear_error(text: str) -> None:
    outcome: Target | str
    try:
        outcome = find_target(text, None, None, {})
    except InputError as error:
        outcome = str(error)
    assert "--tpu" in outcome if isinstance(outcome, str) else outcome != NoTpu()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TPU_GRPC_URL": "http://10.0.0.2:8470"}, ["TPU_GRPC_URL", "http://10.0.0.2:8470"]),
        ({"TPU_GRPC_URL": "10.0.0.2:99999"}, ["TPU_GRPC_URL", "99999"]),
        ({"TPU_NAME": "My_TPU"}, ["TPU_NAME", "My_TPU", "grpc://HOST:PORT"]),
        ({"COLAB_TPU_ADDR": "10.0.0.2:1,"}, ["COLAB_TPU_ADDR"]),
        ({"TPU_GRPC_URL": "10.0.0.2:1,10.0.0.2:1"}, ["more than once", "10.0.0.2:1"]),
        ({"TPU_CONFIG": "{"}, ["TPU_CONFIG", "expected JSON", "tpu_node_name"]),
        ({"TPU_CONFIG": "[]"}, ["TPU_CONFIG", "tpu_node_name"]),
        ({"TPU_CONFIG": '{"tpu_node_name": null}'}, ["TPU_CONFIG", "tpu_node_name"]),
        ({"TPU_CONFIG": '{"zone": "z"}'}, ["TPU_CONFIG", "tpu_node_name"]),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_setting(
    environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        find_target(None, None, None, environ)
    for word in words:
        assert word in str(caught.value)
