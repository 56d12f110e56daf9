"""What a server that has started says about calling it: the viewer's address, and a command to try. For a person on the same machine."""

import shlex
import shutil
import sys
from pathlib import Path

from sentiment.addresses import default_target, near
from sentiment.settings import Settings

TEXT = "a gripping, beautifully shot film"


def how_to_call(settings: Settings, grpc: str, http: str) -> dict[str, str]:
    """Fields of the log event ``ready``: ``viewer``, an URL, if it is served, and ``try_it``, a command line.

    ``grpc`` and ``http``: the addresses that the server listens on, with the ports found; an empty ``http``: HTTP is off.
    """
    fields = {}
    if http and settings.web == "all" and settings.viewer:
        fields["viewer"] = f"{'https' if settings.tls_cert_file else 'http'}://{near(http)}/"
    target = near(grpc)
    words = [_command(), "classify"]
    words += [f"--target {target}"] if target.replace("localhost:", "127.0.0.1:") != default_target() else []
    words += ["--ca CA_FILE"] if settings.tls_cert_file else []
    words += ["--cert FILE --key FILE"] if settings.tls_client_ca_file else []
    words += ["--token-file FILE"] if settings.auth_tokens else []
    fields["try_it"] = " ".join([*words, f'"{TEXT}"'])
    return fields


def _command() -> str:
    """How to run ``sentiment`` from this process's environment and folder."""
    script = Path(sys.executable).parent / "sentiment"
    if not script.exists():
        return "python -m sentiment"
    found = shutil.which("sentiment")
    if found is not None and Path(found).samefile(script):
        return "sentiment"
    try:
        return shlex.quote(str(script.relative_to(Path.cwd())))
    except (ValueError, OSError):
        return shlex.quote(str(script))
