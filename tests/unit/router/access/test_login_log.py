"""Log lines of logins, for arbitrary input of clients."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from router.access.login import LoginLog, scram_user
from shard_client.errors import CommandError


def test_user_names_are_read_from_scram_messages() -> None:
    assert scram_user(b"n,,n=alice,r=nonce") == "alice"
    assert scram_user("n,a=bob,n=a=2Cb=3Dc,r=nonce") == "a,b=c"
    assert scram_user(b"n,,n=\xff\xfe,r=x") == "��"
    assert scram_user(b"p=tls-unique,,n=alice,r=nonce") == "alice"


@given(st.binary(max_size=2000) | st.text() | st.none() | st.integers())
def test_any_payload_gives_a_short_name(payload: object) -> None:
    assert len(scram_user(payload)) <= 256


def test_long_fields_are_cut() -> None:
    lines = LoginLog("127.0.0.1:5")
    with capture_logs() as logged:
        command = {"mechanism": "x" * 10_000, "payload": b"n,,n=" + b"u" * 10_000 + b",r=x"}
        lines.begun("d" * 10_000, command, speculative=False)
        lines.failed(CommandError(18, "Authentication failed."))
    (line,) = logged
    assert len(str(line)) < 1500
    assert line["error"] == "AuthenticationFailed: Authentication failed."


def test_each_login_is_a_span_without_its_user(exported: InMemorySpanExporter) -> None:
    lines = LoginLog("127.0.0.1:5")
    command = {"mechanism": "SCRAM-SHA-256", "payload": b"n,,n=alice,r=x"}
    lines.begun("admin", command, speculative=True)
    lines.succeeded("alice", "admin")
    lines.begun("admin", command, speculative=False)
    lines.failed(CommandError(18, "alice failed", code_name="AuthenticationFailed"))
    lines.begun("admin", {"mechanism": "alice"}, speculative=False)
    lines.failed()
    lines.ended()
    lines.begun("admin", command, speculative=False)
    lines.ended()
    right, wrong, other, abandoned = exported.get_finished_spans()
    assert right.attributes == {
        "db.system.name": "mongodb",
        "mergerouter.mechanism": "SCRAM-SHA-256",
        "mergerouter.speculative": True,
    }
    assert right.status.is_unset
    assert wrong.attributes["error.type"] == "AuthenticationFailed"
    assert other.attributes["mergerouter.mechanism"] == "other"
    assert other.attributes["error.type"] == "AuthenticationFailed"
    assert abandoned.attributes["mergerouter.abandoned"] is True
    assert not any("alice" in each.to_json() for each in exported.get_finished_spans())
