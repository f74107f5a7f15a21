"""Members' errors as the router reports them to clients."""

import bson
import pytest

from router.commands.answer import without_state_change
from shard_client.error_codes import NOT_PRIMARY_CODES
from shard_client.errors import CommandError
from shard_client.wire.documents import decode_reply


@pytest.mark.parametrize("code", sorted(NOT_PRIMARY_CODES))
def test_a_member_s_state_change_is_reported_as_host_unreachable(code: int) -> None:
    error = CommandError(code, "not master and node is recovering", labels=("Kept",))
    told = without_state_change(error).to_reply()
    assert (told["code"], told["codeName"]) == (6, "HostUnreachable")
    assert told["errmsg"] == "(NOT_PRIMARY) and (NODE_IS_RECOVERING)"
    assert told["errorLabels"] == ["Kept"]


def test_other_errors_are_unchanged() -> None:
    error = CommandError(286, "not master")
    assert without_state_change(error) is error


def test_an_error_message_that_quotes_no_utf_8_is_readable() -> None:
    reply = bson.encode({"ok": 0.0, "errmsg": "no number: 'a?'", "code": 241})
    error = CommandError.from_reply(decode_reply(reply.replace(b"a?", b"a\xff")))
    assert (error.code, error.message) == (241, "no number: 'a\ufffd'")
