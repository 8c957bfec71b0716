"""Signatures: what receivers with other libraries will accept, and what they must not."""

from __future__ import annotations

import hmac
from base64 import b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook as Reference
from standardwebhooks.webhooks import WebhookVerificationError

from sinks.partner import SignatureScheme
from sinks.signature import Signer, key_bytes, sign, verify, webhook_id

BODY = b'{"amount":"2452.00"}'
NOW_S = 1_767_225_600
MADEIRA, STANDARD = SignatureScheme.MADEIRA, SignatureScheme.STANDARD_WEBHOOKS


def _verified(
    scheme: SignatureScheme,
    secrets: tuple[bytes, ...],
    headers: dict[str, str],
    body: bytes,
    now_s: int = NOW_S,
) -> bool:
    prefix = "webhook" if scheme is STANDARD else "Madeira"
    dash = "-timestamp" if scheme is STANDARD else "-Timestamp"
    value = headers["webhook-signature" if scheme is STANDARD else "Madeira-Signature"]
    return verify(
        scheme,
        secrets,
        body,
        timestamp=headers[prefix + dash],
        signature=value,
        message_id=headers.get("webhook-id", ""),
        now_s=now_s,
    )


def test_rfc_4231_keys() -> None:
    """A key longer than a block is hashed first, as RFC 2104 says (the vector's key length is RFC 4231's, case 6)."""
    for length in (1, 20, 63, 64, 65, 131):
        key = bytes([0xAA]) * length
        headers = dict(sign(MADEIRA, (key,), BODY, timestamp_s=NOW_S, message_id="a:1"))
        assert headers["Madeira-Signature"] == hmac.new(key, b"%d\n%s" % (NOW_S, BODY), "sha256").hexdigest()


def test_published_vector() -> None:
    """The example that Standard Webhooks libraries share comes out byte for byte."""
    headers = sign(
        STANDARD,
        (b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",),
        b'{"test": 2432232314}',
        timestamp_s=1_614_265_330,
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
    )
    assert headers == (
        ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
        ("webhook-timestamp", "1614265330"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    )


def test_reference_library_accepts_each_secret_of_a_rotation() -> None:
    """While a secret rotates, a receiver with the old one and a receiver with the new one both accept."""
    secrets = tuple(b"whsec_" + b64encode(bytes([n]) * 24) for n in (1, 2))
    now_s = int(datetime.now(UTC).timestamp())
    headers = dict(sign(STANDARD, secrets, BODY, timestamp_s=now_s, message_id="payment-orders:29401"))
    for secret in secrets:
        assert Reference(secret.decode()).verify(BODY.decode(), headers) == {"amount": "2452.00"}
    stranger = Reference("whsec_" + b64encode(b"3" * 24).decode())
    with pytest.raises(WebhookVerificationError):
        stranger.verify(BODY.decode(), headers)


def test_webhook_id_has_no_full_stop() -> None:
    """Two ids never share a webhook id, and none holds the character that joins id, timestamp and body."""
    headers = dict(sign(STANDARD, (b"key",), BODY, timestamp_s=NOW_S, message_id="live:a.1"))
    assert headers["webhook-id"] == "live:a~1" == webhook_id("live:a.1")
    assert _verified(STANDARD, (b"key",), headers, BODY)


@pytest.mark.parametrize("scheme", list(SignatureScheme))
@given(
    body=st.binary(max_size=200), keys=st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=3)
)
def test_what_was_signed_verifies_with_any_of_the_keys(
    scheme: SignatureScheme, body: bytes, keys: list[bytes]
) -> None:
    """Whatever the bytes and however many secrets, each of them verifies, and one changed byte does not."""
    secrets = tuple(b"s" + key for key in keys)
    headers = dict(sign(scheme, secrets, body, timestamp_s=NOW_S, message_id="a:1"))
    for secret in secrets:
        assert _verified(scheme, (secret,), headers, body)
    assert not _verified(scheme, secrets, headers, body + b" ")


@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_too_old_or_too_new_is_not_valid(scheme: SignatureScheme) -> None:
    """A signature holds for 300 s on either side of its timestamp."""
    headers = dict(sign(scheme, (b"key",), BODY, timestamp_s=NOW_S, message_id="a:1"))
    assert _verified(scheme, (b"key",), headers, BODY, NOW_S + 300)
    assert _verified(scheme, (b"key",), headers, BODY, NOW_S - 300)
    assert not _verified(scheme, (b"key",), headers, BODY, NOW_S + 301)
    assert not _verified(scheme, (b"key",), headers, BODY, NOW_S - 301)


@pytest.mark.parametrize("timestamp", ["", "-1", "1e9", " 1767225600", "1767225600.0", "٣", "9" * 400])
def test_malformed_timestamp_is_not_valid(timestamp: str) -> None:
    """A timestamp that is not plain digits is refused, never an error."""
    good = dict(sign(MADEIRA, (b"key",), BODY, timestamp_s=NOW_S, message_id="a:1"))["Madeira-Signature"]
    assert not verify(
        MADEIRA, (b"key",), BODY, timestamp=timestamp, signature=good, message_id="", now_s=NOW_S
    )


@pytest.mark.parametrize("signature", ["", ",", "v1,", "zz", "é", "v2,abc v1"])
@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_malformed_signature_is_not_valid(scheme: SignatureScheme, signature: str) -> None:
    """A signature that is no signature is refused, never an error."""
    stamp = str(NOW_S)
    assert not verify(
        scheme, (b"k",), BODY, timestamp=stamp, signature=signature, message_id="a", now_s=NOW_S
    )


def test_no_secret_signs_and_verifies_nothing() -> None:
    """Without a secret there is no signature header, and nothing counts as signed."""
    assert Signer(MADEIRA, ()).headers(BODY, timestamp_s=NOW_S, message_id="a:1") == ()
    assert not verify(MADEIRA, (), BODY, timestamp=str(NOW_S), signature="", message_id="", now_s=NOW_S)


@pytest.mark.parametrize("secret", [b"", b"whsec_", b"whsec_not base64!"])
def test_broken_secret_is_refused_without_showing_it(secret: bytes) -> None:
    """A secret that cannot be a key is an error that does not repeat the secret."""
    with pytest.raises(ValueError) as caught:
        key_bytes(secret)
    assert "not base64!" not in str(caught.value)
