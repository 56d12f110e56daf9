"""The addresses of a server's ports: what a wildcard means, and what is said of a port in use."""

import asyncio
import socket
from collections.abc import Callable

import grpc
import pytest

from sentiment.doors.grpc.port import GrpcPort
from sentiment.doors.http.arriving import peer_of
from sentiment.doors.http.listening import listen
from sentiment.doors.listening import bound, reserved, split
from sentiment.errors import BadSettings, CannotServe
from sentiment.signs import Sign, shown
from tests.conftest import RunningServer

Start = Callable[..., RunningServer]


def reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "[::]"])
def test_a_wildcard_is_every_address_of_both_families_on_all_ports(start: Start, wildcard: str) -> None:
    server = start(grpc_listen=f"{wildcard}:0", http_listen=f"{wildcard}:0")

    families = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
    for port in (server.app.grpc_port, server.app.http_port):
        assert {host: reached(host, port) for host in families} == dict.fromkeys(families, True)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "[::]"])
async def test_without_ipv6_a_wildcard_is_every_address_of_ipv4(monkeypatch: pytest.MonkeyPatch, wildcard: str) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    with reserved("grpc_listen", f"{wildcard}:0") as held:
        assert split(held)[1] > 0
    server = await listen(asyncio.Protocol, *split(f"{wildcard}:0"))

    assert [each.family for each in server.sockets] == [socket.AF_INET]
    server.close()


def test_a_held_wildcard_is_held_in_both_families() -> None:
    with reserved("grpc_listen", "0.0.0.0:0") as held:
        port = split(held)[1]
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))[: 1 + socket.has_dualstack_ipv6()]:
            with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                other.bind((host, port))


def test_a_caller_of_ipv4_has_one_name_on_a_port_of_both_families() -> None:
    class Request:
        def __init__(self, *name: object) -> None:
            self.get_extra_info = lambda _: name

    assert [peer_of(Request(*name)) for name in (("192.0.2.1", 5), ("::ffff:192.0.2.1", 5, 0, 0), ("::1", 5, 0, 0), ())] == [  # type: ignore[arg-type]  # all it reads
        "ipv4:192.0.2.1:5",
        "ipv4:192.0.2.1:5",
        "ipv6:[::1]:5",
        "",
    ]


def test_a_port_in_use_by_another_server_is_reported(start: Start) -> None:
    first = start(http_listen="127.0.0.1:0")

    for port in (first.app.grpc_port, first.app.http_port):
        with (
            pytest.raises(CannotServe, match="the port is in use by another sentiment server; stop what uses it, or choose another"),
            reserved("grpc_listen", f"127.0.0.1:{port}"),
        ):
            raise AssertionError("the port is in use")


@pytest.mark.parametrize("address", ["nosuch.invalid:0", "192.0.2.1:0"])
def test_an_address_of_no_machine_or_another_is_a_wrong_setting(address: str) -> None:
    with pytest.raises(BadSettings, match=f"gRPC cannot listen on {address}: "), reserved("grpc_listen", address):
        raise AssertionError("it is not an address of this machine")


async def test_what_grpc_does_not_say_of_a_port_is_found_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = GrpcPort(grpc.aio.server(options=(("grpc.so_reuseport", 0),)), "admin_listen", f"127.0.0.1:{taken.getsockname()[1]}")

        with pytest.raises(CannotServe, match=r"the port is in use; .* \(--admin-listen or SENTIMENT_ADMIN_LISTEN\)"):
            port.bind()


def test_a_sign_goes_with_its_context() -> None:
    with bound("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with shown(Sign.SERVING, port), pytest.raises(CannotServe, match="by another sentiment server"):
            held.listen()
            with reserved("grpc_listen", f"127.0.0.1:{port}"):
                raise AssertionError("the port is in use")

        with pytest.raises(CannotServe, match="the port is in use; "), reserved("grpc_listen", f"127.0.0.1:{port}"):
            raise AssertionError("the port is in use")
