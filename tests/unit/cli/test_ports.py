"""Ports are chosen once, and a configured port that is taken is one clear line."""

import socket

import pytest

from services.cli.ports import PortChooser, is_port_free
from services.common.errors import ConfigError


def test_free_ports_are_chosen_once_and_taken_ones_passed_over() -> None:
    chooser = PortChooser(start=0, is_free=lambda host, port: port not in (20000, 20002))
    chosen = [chooser.choose("127.0.0.1", configured=0, key=f"key{i}") for i in range(3)]
    assert chosen == [20001, 20003, 20004]


def test_search_begins_again_at_the_first_port() -> None:
    chooser = PortChooser(start=11999, is_free=lambda host, port: True)
    assert [chooser.choose("h", configured=0, key=k) for k in "ab"] == [31999, 20000]


def test_a_configured_port_is_kept() -> None:
    chooser = PortChooser(start=0, is_free=lambda host, port: True)
    assert chooser.choose("127.0.0.1", configured=7000, key="reward.endpoint.port") == 7000


def test_a_taken_configured_port_is_named_with_its_key() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not is_port_free("127.0.0.1", port)
        with pytest.raises(ConfigError) as caught:
            PortChooser(start=0).choose("127.0.0.1", configured=port, key="reward.endpoint.port")
    assert str(caught.value) == (
        f"reward.endpoint.port is {port}, but port {port} on 127.0.0.1 is taken by another process; "
        "end that process, set reward.endpoint.port to a free port, or to 0 to have one chosen"
    )


def test_one_port_for_two_services_is_named_with_both_keys() -> None:
    chooser = PortChooser(start=0, is_free=lambda host, port: True)
    chooser.choose("127.0.0.1", configured=7000, key="reward.endpoint.port")
    with pytest.raises(ConfigError) as caught:
        chooser.choose("127.0.0.1", configured=7000, key="weights.endpoint.port")
    assert str(caught.value) == (
        "weights.endpoint.port is 7000, which reward.endpoint.port uses as well; "
        "give each its own port, or 0 for a free one"
    )


def test_no_free_port_at_all_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no port from 20000 to 32000 is free on h; set k to a free one"):
        PortChooser(start=0, is_free=lambda host, port: False).choose("h", configured=0, key="k")
