"""A client of Confluent's schema registry, which registers Avro schemas by HTTP.

The API: `POST /subjects/{subject}/versions` returns the id of a schema, an equal one's if the
registry has it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from spark_sink.errors import OptionError, StreamError
from spark_sink.options.stream_options import DEFAULT_RETRY_POLICY, RetryPolicy
from spark_sink.stream.retries import Retries

_TYPE = "application/vnd.schemaregistry.v1+json"
_SECONDS = 10.0
"""How long a registry may be silent, and how long its answer may take once it has begun."""
_LONGEST_ANSWER = 1 << 20  # bytes
_REMEDIES = {
    401: "the login is refused: check the user and the password in schema_registry_url",
    403: "not allowed: the user in schema_registry_url needs the right to write the subject",
    404: "no schema registry answers there: check the path in schema_registry_url",
    409: "the schema is not compatible with the subject's earlier ones: set the subject's "
    "compatibility to NONE, delete the subject, or choose another prefix",
    422: "the registry does not accept the schema: it must take schemas of the type AVRO",
}
"""By statuses; the rules are those of the registry's API reference."""
_MAY_PASS = (408, 429)
"""The statuses below 500 after which the same request may succeed."""
_OK, _SERVER_ERRORS = 200, 500
_LARGEST_ID = 0x7FFF_FFFF


class Address(NamedTuple):
    """A registry's address without a login, and the headers of requests to it."""

    url: str
    headers: Mapping[str, str]


def addresses_in(urls: str) -> tuple[Address, ...]:
    """Return the registries of `schema.registry.url`: URLs with commas between them.

    A URL may have a user and a password. Raises OptionError.
    """
    return tuple(_address(url.strip()) for url in urls.split(","))


def _address(url: str) -> Address:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment:
        raise OptionError(
            "schema_registry_url must be like https://user:password@registry:8081, or several with "
            "commas between them"
        )
    login, _, host = parts.netloc.rpartition("@")
    pair = ":".join(map(unquote, login.partition(":")[::2])) if login else None
    headers = {"Content-Type": _TYPE, "Accept": _TYPE, **urllib3.make_headers(basic_auth=pair)}
    return Address(f"{parts.scheme}://{host}{parts.path.rstrip('/')}", headers)


def register_schema(
    addresses: Sequence[Address],
    subject: str,
    schema: str,
    policy: RetryPolicy = DEFAULT_RETRY_POLICY,
) -> int:
    """Register a schema and return its id.

    A failure that may be temporary is retried, with the next registry if there are several: no
    connection, no answer for ten seconds, 408, 429 and 5xx. A refusal is final.

    Raises StreamError for a refusal, for a certificate that is not valid, for an answer that is
    not a registry's, and after the policy's last retry.
    """
    retries = Retries(policy)
    attempt = 0
    while True:
        address = addresses[attempt % len(addresses)]
        attempt += 1
        try:
            return _register(address, subject, schema)
        except HTTPError as error:
            failure = getattr(error, "reason", None) or error
            if "CERTIFICATE_VERIFY_FAILED" in str(failure):
                raise StreamError(
                    f"the certificate of the schema registry at {address.url} is not valid here: "
                    "set SSL_CERT_FILE in the environment of the executors to its authority's file",
                    failure,
                ) from None
        retries.wait(failure, f"the schema registry at {address.url}", "there")


def _register(address: Address, subject: str, schema: str) -> int:
    """Make one request. Raises HTTPError if another one may succeed, and StreamError."""
    url = f"{address.url}/subjects/{quote(subject, safe='')}/versions"
    with (
        urllib3.PoolManager(retries=False, timeout=_SECONDS) as pool,
        pool.request(
            "POST",
            url,
            json={"schema": schema},
            headers=address.headers,
            redirect=False,  # which would turn POST into GET
            preload_content=False,
        ) as response,
    ):
        text = _whole(response)
    if response.status >= _SERVER_ERRORS or response.status in _MAY_PASS:
        raise HTTPError(f"HTTP {response.status} {response.reason}")
    try:
        reply = json.loads(text)
    except ValueError:
        reply = None
    answer = reply if isinstance(reply, dict) else {}
    if response.status != _OK:
        remedy = _REMEDIES.get(response.status, "check schema_registry_url")
        if target := response.headers.get("Location"):
            other = urljoin(url, target).partition("/subjects/")[0]
            remedy = f"set schema_registry_url to where it redirects to: {other}"
        raise StreamError(
            f"the schema registry at {address.url} answers {response.status} for {subject}: "
            f"{remedy}",
            answer.get("message", response.reason),
        )
    identifier = answer.get("id")
    if type(identifier) is not int or not 0 <= identifier <= _LARGEST_ID:
        raise StreamError(
            f"{_REMEDIES[404]}. {address.url} answers a request to register a schema without an id",
            text[:100].decode(errors="replace"),
        )
    return identifier


def _whole(response: urllib3.BaseHTTPResponse) -> bytes:
    """Return an answer's content up to a bound. Raises HTTPError if it arrives too slowly."""
    deadline = time.monotonic() + _SECONDS
    content = b""
    while len(content) < _LONGEST_ANSWER and (part := response.read1(_LONGEST_ANSWER)):
        content += part
        if time.monotonic() > deadline:
            raise HTTPError("timed out within an answer")
    return content
