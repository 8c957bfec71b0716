"""`madeira send` posts one signed event, as any sender would; `madeira keygen` makes a secret to sign with."""

from __future__ import annotations

import json
import re
import secrets
import socket
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import time
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from madeira import show
from madeira.address import shown
from madeira.mistakes import nearest
from madeira.settings import Settings
from pipelines.live_source import LiveSource
from sinks.partner import SignatureScheme
from sinks.signature import sign
from streams.errors import ConfigurationError

URL: Final = "http://127.0.0.1:8700"
"""Where `madeira serve` listens if nobody says otherwise."""

_PATIENCE_S: Final = 30.0
_ANSWER_LIMIT: Final = 1 << 20
_KEY_BYTES: Final = 32
_URL: Final = re.compile(r"https?://[!-~]+")


@dataclass(frozen=True, slots=True)
class Event:
    """What is posted. `payload` is JSON, whose bytes the partner gets as they stand here; `amount` a decimal."""

    event_id: str
    event_type: str
    payload: bytes
    routing_key: str = ""
    tags: Mapping[str, str] | None = None
    amount: str | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class _Reply:
    code: int
    retry_after: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class _Silence:
    """Nobody answered; `why` is a sentence that says what to do."""

    why: str


class _Mistake(msgspec.Struct):
    path: str = ""
    message: str = ""


class _Answer(msgspec.Struct):
    """What may stand in an answer: of an accepted event, or of a problem (RFC 9457)."""

    status: str | int = ""
    event_id: str = ""
    trace_id: str = ""
    title: str = ""
    detail: str = ""
    errors: list[_Mistake] = []


def keygen(*, as_json: bool) -> int:
    """Print a new secret; it serves both signature schemes."""
    secret = f"whsec_{b64encode(secrets.token_bytes(_KEY_BYTES)).decode()}"
    if as_json:
        show.say_json({"secret": secret})
    else:
        show.say(secret)
    return 0


def check_payload(payload: bytes) -> None:
    """Raises `ValueError` unless the payload is one JSON value in UTF-8."""
    try:
        json.loads(payload.decode(), parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the payload must be JSON: {error}") from None


def check_url(url: str) -> SplitResult:
    """The parts of the address of a `madeira serve`. Raises `ValueError` for what is none."""
    parts = urlsplit(url)
    if not (_URL.fullmatch(url) and parts.hostname) or parts.query or parts.fragment or parts.username:
        raise ValueError(f"must be an http:// or https:// address like {URL}")
    _ = parts.port  # raises for what is no port
    return parts


def body_of(event: Event, source: str) -> bytes:
    """The request's body, with the payload's bytes in it untouched."""
    fields: dict[str, object] = {"source": source, "event_id": event.event_id, "event_type": event.event_type}
    if event.routing_key:
        fields["routing_key"] = event.routing_key
    if event.tags:
        fields["tags"] = event.tags
    if event.amount is not None:
        fields |= {"amount": event.amount, "currency": event.currency}
    return b'%s,"payload":%s}' % (msgspec.json.encode(fields)[:-1], event.payload)


def send(settings: Settings, source_name: str, event: Event, *, url: str | None, as_json: bool) -> int:
    """Post the event, signed with the source's newest key, and print the answer. 0 accepted or known already,
    1 refused, 3 nobody answered. Without a `url` it goes to where this host's `madeira serve` listens.

    Raises `ConfigurationError` for a source that is not configured or has no key here.
    """
    source = _source(settings, source_name)
    url = url or f"http://{shown(*settings.listen)}"
    body = body_of(event, source.name)
    # The sender's own clock: a sender has no other.
    signed = sign(
        SignatureScheme.MADEIRA, source.keys[:1], body, timestamp_s=int(time()), message_id=event.event_id
    )
    headers = {"Content-Type": "application/json", "Madeira-Source": source.name, **dict(signed)}
    reply = _post(url, body, headers, event)
    if isinstance(reply, _Silence):
        if as_json:
            show.say_json({"status": "no answer", "event_id": event.event_id, "detail": reply.why})
        else:
            show.say(reply.why, style="bold red")
        return 3
    try:
        answer = msgspec.json.decode(reply.body, type=_Answer)
    except msgspec.DecodeError:
        answer = _Answer(title="the answer is not Madeira's: is that the address of madeira serve?")
    accepted = reply.code == 202 and answer.status in {"accepted", "duplicate"}
    if as_json:
        show.say_json(
            {"code": reply.code, "status": answer.status if accepted else "refused",
             "event_id": answer.event_id or event.event_id, "trace_id": answer.trace_id, "title": answer.title,
             "detail": answer.detail, "errors": answer.errors, "retry_after": reply.retry_after}
        )  # fmt: skip
    elif accepted:
        known = "accepted" if answer.status == "accepted" else "known already: nothing is sent twice"
        show.say(f"{known}: event {answer.event_id}, trace {answer.trace_id}", style="green")
        show.say(f"follow it: madeira trace {source.name}:{answer.event_id}")
    else:
        _print_refusal(reply, answer)
    return 0 if accepted else 1


def _print_refusal(reply: _Reply, answer: _Answer) -> None:
    text = ": ".join(part for part in (answer.title, answer.detail) if part)
    show.say(f"refused ({reply.code}){f': {text}' if text else ''}", style="bold red")
    for mistake in answer.errors:
        show.say(f"  {mistake.path}: {mistake.message}" if mistake.path else f"  {mistake.message}")
    if reply.retry_after:
        show.say(f"  try again in {reply.retry_after} s")


def _source(settings: Settings, name: str) -> LiveSource:
    source = settings.sources.get(name)
    if source is None:
        raise ConfigurationError(
            (f"{settings.config}: no source is called {name}: {nearest(name, list(settings.sources))}",)
        )
    if not source.keys:
        # The sentences that name the variable; the value of a secret is in none of them.
        unset = [sentence for sentence in settings.unset_secrets if f"sources.{name}.key_env" in sentence]
        raise ConfigurationError(
            tuple(unset)
            or (
                f"{settings.config}: source {name} has no key here: set the variables that its key_env names",
            )
        )
    return source


def _post(url: str, body: bytes, headers: Mapping[str, str], event: Event) -> _Reply | _Silence:
    parts = check_url(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE_S)
    try:
        connection.connect()
    except (OSError, HTTPException) as error:
        return _Silence(f"nobody listens at {url} ({_said(error)}): is madeira serve running there?")
    try:
        connection.request("POST", f"{parts.path.rstrip('/')}/v1/events", body=body, headers=dict(headers))
        answer = connection.getresponse()
        return _Reply(answer.status, answer.headers.get("Retry-After"), answer.read(_ANSWER_LIMIT))
    except (OSError, HTTPException) as error:
        return _Silence(
            f"{url} gave no answer ({_said(error)}), and may have accepted the event: send it again with "
            f"--id {event.event_id} and all else as it was, a second one is known as such"
        )
    finally:
        connection.close()


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, socket.gaierror):
        return "the name does not resolve"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is no JSON")
