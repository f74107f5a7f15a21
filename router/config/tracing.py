"""``tracing``: spans for an OpenTelemetry collector."""

import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from router.config.problems import Section
from shard_client.wire.authentication import read_secret_file

_PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")


class Tracing(Section):
    """``tracing``: where spans go, and how many are recorded (docs/admin.md#traces)."""

    endpoint: str | None = None
    """The URL to which spans are sent, by OTLP over HTTP: http://collector:4318/v1/traces. Needs
    the extra otel; without it there are no traces."""
    sample_ratio: float = Field(default=1.0, alias="sampleRatio", ge=0, le=1)
    """The share of traces that are recorded."""
    headers_file: Path | None = Field(default=None, alias="headersFile")
    """A file with headers for the collector, such as a token: lines of name: value, readable by its
    owner only."""

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is None:
            return value
        url = urlsplit(value)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("must be a URL such as http://collector:4318/v1/traces")
        if url.username is not None:
            raise ValueError("must hold no password: put the header into tracing.headersFile")
        for package in _PACKAGES:
            try:
                version(package)
            except PackageNotFoundError:
                raise ValueError(
                    f"requires {package}, which is not installed. "
                    f"Run: {shlex.join([sys.executable, '-m', 'pip', 'install', *_PACKAGES])}"
                ) from None
        return value

    def read_headers(self) -> dict[str, str]:
        """Return the headers in ``headersFile`` by name; none if no file is set.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file can be read by others, or a line is no header.
        """
        if self.headers_file is None:
            return {}
        headers = {}
        for line in read_secret_file(self.headers_file).splitlines():
            name, colon, value = line.partition(":")
            if not (colon and name.strip() and value.strip()):
                raise ValueError(f"{self.headers_file} must hold lines of name: value")
            headers[name.strip()] = value.strip()
        return headers
