"""Makes gRPC, whose threads are not greenlets, work where gevent has replaced Python's."""

import sys

from grpc.experimental import gevent


def patched() -> bool:
    """Whether gevent has replaced Python's threads (``gevent.monkey``). Imports no gevent."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def prepare() -> None:
    """Where threads are greenlets, let gRPC wait in gevent's pool. Otherwise explanations and calls for many texts hang (grpcio 1.85)."""
    if patched():
        gevent.init_gevent()
