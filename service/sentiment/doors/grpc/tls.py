"""TLS for gRPC servers, with certificates that can change while the server runs."""

from collections.abc import Callable

import grpc

from sentiment.security.certificates import Certificates


def server_credentials(certificates: Callable[[], Certificates]) -> grpc.ServerCredentials:
    """Credentials for one server. Each new connection uses the current certificates; open connections are not affected.

    Args:
        certificates: returns the current certificates; called in threads of gRPC. The certificates at the start decide whether clients
            must show one.
    """
    served = certificates()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        now = certificates()
        if now is served:
            return None
        served = now
        return _configuration(now)

    required = served.contents.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(_configuration(served), changed, required)  # type: ignore[arg-type]  # may be None


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    contents = certificates.contents
    return grpc.ssl_server_certificate_configuration([(contents.key, contents.certificate)], contents.client_ca)
