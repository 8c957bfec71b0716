"""The signature of one request: who sent these bytes, and when. Pure; bytes in, header values out.

Two schemes, chosen per partner:

- `madeira`: `Madeira-Timestamp` (unix seconds) and `Madeira-Signature`, the hex HMAC-SHA256 over
  *timestamp, newline, raw
  body*. While a secret rotates there is one hex value per secret, separated by `,`; the receiver accepts any.
- `standard-webhooks` (Standard Webhooks 1.0.0): `webhook-id`, `webhook-timestamp`, `webhook-signature`, one
  `v1,<base64>` per
  secret separated by a space, over *id `.` timestamp `.` raw body*.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from hashlib import sha256
from secrets import token_bytes
from typing import Final

from sinks.partner import SignatureScheme

WINDOW_S: Final = 300
"""How far a timestamp may be from the receiver's clock, both ways."""

_PREFIX: Final = b"whsec_"
_BLOCK: Final = 64  # bytes of one SHA-256 block, RFC 2104's B
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))

Headers = tuple[tuple[str, str], ...]


def key_bytes(secret: bytes) -> bytes:
    """The HMAC key of a secret: `whsec_<base64>` is decoded, anything else is the key as it stands.

    Raises `ValueError` for an empty secret or one whose base64 is broken; the text never holds the secret.
    """
    if not secret.startswith(_PREFIX):
        key = secret
    else:
        try:
            key = b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError("the part after whsec_ must be base64") from None
    if not key:
        raise ValueError("a signing secret must not be empty")
    return key


class _Mac:
    """HMAC-SHA256 (RFC 2104) under one key, both padded blocks hashed beforehand: half the time of
    `hmac.copy()`."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = sha256(block.translate(_INNER))
        self._outer = sha256(block.translate(_OUTER))

    def digest(self, message: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


def webhook_id(message_id: str) -> str:
    """The `webhook-id` of a message: constant over all attempts.

    Full stops become `~`, which no id of ours contains: id, timestamp and body are signed joined by full
    stops, so an id with one could be read as another id with another timestamp.
    """
    return message_id.replace(".", "~")


class Signer:
    """Signs for one partner; made once, used for every request. Raises `ValueError` as `key_bytes` does."""

    __slots__ = ("_macs", "_standard")

    def __init__(self, scheme: SignatureScheme, secrets: tuple[bytes, ...]) -> None:
        self._standard = scheme is SignatureScheme.STANDARD_WEBHOOKS
        self._macs = tuple(_Mac(key_bytes(secret)) for secret in secrets)

    def headers(self, body: bytes, *, timestamp_s: int, message_id: str) -> Headers:
        """The headers that prove `body`, in the order in which they are sent; none when there is no
        secret."""
        if not self._macs:
            return ()
        if self._standard:
            identity = webhook_id(message_id)
            message = b"%s.%d.%s" % (identity.encode(), timestamp_s, body)
            values = [f"v1,{b64encode(mac.digest(message)).decode()}" for mac in self._macs]
            return (
                ("webhook-id", identity),
                ("webhook-timestamp", str(timestamp_s)),
                ("webhook-signature", " ".join(values)),
            )
        message = b"%d\n%s" % (timestamp_s, body)
        return (
            ("Madeira-Timestamp", str(timestamp_s)),
            ("Madeira-Signature", ",".join([mac.digest(message).hex() for mac in self._macs])),
        )


class Verifier:
    """Checks the `madeira` scheme for one sender; made once, used for every request.

    Without secrets nothing is ever valid, and finding that out takes as long. Raises `ValueError` as `key_bytes`
    does.
    """

    __slots__ = ("_known", "_macs")

    def __init__(self, secrets: tuple[bytes, ...]) -> None:
        self._known = bool(secrets)
        self._macs = tuple(_Mac(key_bytes(secret)) for secret in secrets or (token_bytes(32),))

    def fits(self, message: bytes, *, timestamp: str, signature: str) -> bool:
        """Whether one value of `signature` is a secret's over *timestamp, newline, message*; constant time.

        `timestamp` is ASCII, and whether it is recent is the caller's question. Hex digits may be capital.
        """
        if not signature.isascii():
            return False
        signed = b"%s\n%s" % (timestamp.encode(), message)
        if len(self._macs) == 1 and "," not in signature:
            return hmac.compare_digest(signature.lower(), self._macs[0].digest(signed).hex()) and self._known
        expected = [mac.digest(signed).hex() for mac in self._macs]
        offered = [value.strip().lower() for value in signature.split(",")]
        matches = [hmac.compare_digest(value, wanted) for value in offered for wanted in expected]
        return any(matches) and self._known


def sign(
    scheme: SignatureScheme, secrets: tuple[bytes, ...], body: bytes, *, timestamp_s: int, message_id: str
) -> Headers:
    """`Signer.headers` for a single use."""
    return Signer(scheme, secrets).headers(body, timestamp_s=timestamp_s, message_id=message_id)


def verify(
    scheme: SignatureScheme,
    secrets: tuple[bytes, ...],
    body: bytes,
    *,
    timestamp: str,
    signature: str,
    message_id: str,
    now_s: int,
    window_s: int = WINDOW_S,
) -> bool:
    """Whether one of `secrets` made one of the values in `signature` over these bytes, at most `window_s`
    from `now_s`.

    `timestamp`, `signature` and `message_id` are header values as received (`message_id` counts for
    `standard-webhooks` only). Compares in constant time; anything malformed is simply not valid.
    """
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):
        return False
    if abs(now_s - int(timestamp)) > window_s:
        return False
    if scheme is SignatureScheme.STANDARD_WEBHOOKS:
        message = b"%s.%s.%s" % (message_id.encode(), timestamp.encode(), body)
        offered = [value.removeprefix("v1,") for value in signature.split(" ") if value.startswith("v1,")]
        expected = [b64encode(_Mac(key_bytes(secret)).digest(message)) for secret in secrets]
    else:
        message = b"%s\n%s" % (timestamp.encode(), body)
        offered = [value.strip().lower() for value in signature.split(",")]
        expected = [_Mac(key_bytes(secret)).digest(message).hex().encode() for secret in secrets]
    # Every pair is compared, so the time taken does not say which secret or which value fitted.
    matches = [hmac.compare_digest(value.encode(), wanted) for value in offered for wanted in expected]
    return any(matches)
