"""Command fields that are refused, and the messages."""

from collections import deque
from typing import Any

import pytest

from router.config.log_lines import RECENT
from tests.harness.facade import facade


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"killCursors": "c"}, 40414),
        ({"killCursors": 5, "cursors": []}, 14),
        ({"killCursors": "c", "cursors": 5}, 14),
        ({"killCursors": "c", "cursors": ["x"]}, 14),
        ({"endSessions": 5}, 14),
        ({"endSessions": [5]}, 14),
        ({"endSessions": [{"id": 5}]}, 14),
        ({"getLog": "nonsense"}, 96),
        ({"getLog": 1}, 14),
        ({"getLog": None}, 40414),
        ({"connectionStatus": 1, "apiVersion": "1", "apiStrict": True}, 323),
        ({"ping": 1, "apiVersion": "2"}, 322),
        ({"ping": 1, "apiVersion": 1}, 14),
        ({"ping": 1, "apiStrict": True}, 4886600),
        ({"serverStatus": 1, "apiVersion": "1", "apiStrict": True}, 323),
    ],
)
async def test_invalid_fields_of_other_commands_are_refused(
    command: dict[str, Any], code: int
) -> None:
    async with facade() as router, await router.client() as client:
        assert (await client.command("admin", command))["code"] == code


async def test_get_log_names_its_logs() -> None:
    async with facade() as router, await router.client() as client:
        assert (await client.command("admin", {"getLog": "*"}))["names"]
        assert "log" in await client.command("admin", {"getLog": "global"})


async def test_lines_logged_at_one_time_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['{"t": {"$date": "2"}, "n": 1}', '{"t": {"$date": "2"}, "n": 0}']
    earlier = '{"t": {"$date": "1"}, "n": 2}'
    monkeypatch.setattr(RECENT, "lines", deque([*lines, earlier]))
    async with facade() as router, await router.client() as client:
        reply = await client.command("admin", {"getLog": "global"})
    assert [line for line in reply["log"] if line in (*lines, earlier)] == [earlier, *lines]


async def test_a_deeply_nested_document_is_an_error() -> None:
    deep = b""
    for _ in range(10_000):
        content = b"\3a\0" + deep if deep else b""
        deep = (len(content) + 5).to_bytes(4, "little") + content + b"\0"
    body = b"\x10ping\0\1\0\0\0\3x\0" + deep + b"\2$db\0\6\0\0\0admin\0"
    document = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
    frame = (21 + len(document)).to_bytes(4, "little") + b"\1\0\0\0\0\0\0\0\xdd\7\0\0\0\0\0\0\0"
    async with facade() as router, await router.client() as client:
        client.send_bytes(frame + document)
        assert (await client.receive())["ok"] in (0, 1)
        async with await router.client() as other:
            assert (await other.command("admin", {"ping": 1}))["ok"] == 1
