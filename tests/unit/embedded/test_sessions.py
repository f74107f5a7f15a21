"""The table of sessions: bounded, without losing open transactions."""

from bson.binary import Binary

from embedded.sessions import SessionTable


def lsid(number: int) -> dict[str, Binary]:
    return {"id": Binary(bytes([number]) * 16, 4)}


def test_the_session_that_was_not_used_for_longest_is_dropped() -> None:
    sessions = SessionTable(limit=2)
    first = sessions.get(lsid(1))
    sessions.get(lsid(2))
    assert sessions.get(lsid(1)) is first
    sessions.get(lsid(3))
    assert sessions.find(lsid(2)) is None
    assert sessions.find(lsid(1)) is first
