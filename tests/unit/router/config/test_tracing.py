"""``tracing``: the collector's address and headers."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from router.config import tracing
from router.config.settings import Settings
from router.config.tracing import Tracing

ENDPOINT = "https://collector.example:4318/v1/traces"


def test_there_are_no_traces_by_default() -> None:
    assert Settings().tracing.endpoint is None
    assert Tracing().read_headers() == {}


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector/", "http:///v1/traces"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be a URL such as"):
        Tracing(endpoint=endpoint)


def test_an_endpoint_holds_no_password() -> None:
    with pytest.raises(ValueError, match=r"headersFile"):
        Tracing(endpoint="https://user:secret@collector.example/v1/traces")


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    assert Tracing(endpoint=ENDPOINT).endpoint == ENDPOINT
    monkeypatch.setattr(tracing, "version", version)
    with pytest.raises(ValueError, match=r"-m pip install opentelemetry-sdk"):
        Tracing(endpoint=ENDPOINT)


def test_headers_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a:b\nx-tenant:  orders \n")
    settings = Tracing(endpoint=ENDPOINT, headers_file=file)
    with pytest.raises(ValueError, match="too open"):
        settings.read_headers()
    file.chmod(0o600)
    assert settings.read_headers() == {"Authorization": "Bearer a:b", "x-tenant": "orders"}
    file.write_text("Bearer secret\n")
    with pytest.raises(ValueError, match="lines of name: value") as failure:
        settings.read_headers()
    assert "secret" not in str(failure.value)
