"""Selects the driver for a target's protocol."""

from sentiment.errors import BadSettings
from sentiment_tools.loadtest.drivers import Driver, LoadFailed, Target


def open_driver(target: Target, stream: bool) -> Driver:
    """The driver for a target's protocol, not yet connected.

    Raises:
        LoadFailed: the address is not valid, or a credentials file cannot be used.
    """
    try:
        if target.protocol == "http":
            from sentiment_tools.loadtest.http_driver import HttpDriver  # noqa: PLC0415  # a process loads only the driver that it uses

            return HttpDriver(target)
        if target.protocol == "oip":
            from sentiment_tools.loadtest.oip_driver import OipDriver  # noqa: PLC0415  # as above

            return OipDriver(target)
        from sentiment_tools.loadtest.grpc_driver import GrpcDriver  # noqa: PLC0415  # as above

        return GrpcDriver(target, stream)
    except ValueError as error:
        raise LoadFailed(f"target {target.address!r} is not a valid address: {error}") from error
    except BadSettings as error:
        raise LoadFailed(str(error)) from error
