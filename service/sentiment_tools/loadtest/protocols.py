"""Selects the driver for a target's protocol."""

from collections.abc import Callable

from sentiment.errors import BadSettings
from sentiment_tools.loadtest.drivers import Driver, LoadFailed, Target


def open_driver(target: Target, stream: bool) -> Driver:
    """The driver for a target's protocol, not yet connected.

    Raises:
        LoadFailed: the address is not valid, or a credentials file cannot be used.
    """
    try:
        return _DRIVERS[target.protocol](target, stream)
    except ValueError as error:
        raise LoadFailed(f"target {target.address!r} is not a valid address: {error}") from error
    except BadSettings as error:
        raise LoadFailed(str(error)) from error


def _grpc(target: Target, stream: bool) -> Driver:
    from sentiment_tools.loadtest.grpc_driver import GrpcDriver  # noqa: PLC0415  # a process loads only the driver that it uses

    return GrpcDriver(target, stream)


def _oip(target: Target, _stream: bool) -> Driver:
    from sentiment_tools.loadtest.oip_driver import OipDriver  # noqa: PLC0415  # as above

    return OipDriver(target)


def _http(target: Target, _stream: bool) -> Driver:
    from sentiment_tools.loadtest.http_driver import HttpDriver  # noqa: PLC0415  # as above

    return HttpDriver(target)


_DRIVERS: dict[str, Callable[[Target, bool], Driver]] = {"grpc": _grpc, "oip": _oip, "http": _http}
