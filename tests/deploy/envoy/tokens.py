"""An issuer of bearer tokens (JWT, ES256), as an identity provider has it."""

import base64
import json
import time
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

KEY_ID = "first"
BYTES = 32


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(fields: dict[str, Any]) -> str:
    return encoded(json.dumps(fields).encode())


class Issuer:
    """Signs with a key of its own."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def jwks(self) -> str:
        """What a checker of its tokens must know."""
        public = self._key.public_key().public_numbers()
        x, y = (encoded(number.to_bytes(BYTES, "big")) for number in (public.x, public.y))
        return json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": KEY_ID, "x": x, "y": y}]})

    def token(self, client: str = "reader", **claims: Any) -> str:
        """For a client, good for an hour; ``claims`` changes what it says, None leaves a claim out."""
        said = {"iss": "https://issuer.example", "aud": "sentiment", "sub": client, "exp": int(time.time()) + 3600, **claims}
        signed = f"{part({'alg': 'ES256', 'kid': KEY_ID})}.{part({key: value for key, value in said.items() if value is not None})}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{encoded(r.to_bytes(BYTES, 'big') + s.to_bytes(BYTES, 'big'))}"


def unsigned(token: str) -> str:
    """The same claims by a token that says that it needs no signature."""
    return f"{part({'alg': 'none'})}.{token.split('.')[1]}."
