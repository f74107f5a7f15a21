"""Log lines of logins, for arbitrary input of clients."""

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from router.access.login_log import LoginLog, scram_user
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
