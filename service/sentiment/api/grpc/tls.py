"""gRPC's own TLS, with certificates that are exchanged while the server runs."""

from collections.abc import Callable

import grpc

from sentiment.security.certificates import Certificates


def server_credentials(certificates: Callable[[], Certificates]) -> grpc.ServerCredentials:
    """Credentials for one server. Each new connection is secured with the certificates of that moment; those that are open go on.

    Args:
        certificates: those of now; called in threads of gRPC. Whether clients must show a certificate is decided at the start.
    """
    served = certificates()

    def exchanged() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served
        now = certificates()
        if now is served:
            return None
        served = now
        return _configuration(now)

    required = served.contents.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(_configuration(served), exchanged, required)  # type: ignore[arg-type]  # may be None


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    contents = certificates.contents
    return grpc.ssl_server_certificate_configuration([(contents.key, contents.certificate)], contents.client_ca)
