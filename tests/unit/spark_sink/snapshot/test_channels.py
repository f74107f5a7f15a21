"""The channels of signals: files in a folder, and documents in a collection."""

import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from spark_sink.errors import StreamError
from spark_sink.snapshot.signal import ReceivedSignal, digest
from spark_sink.snapshot.signal_channels import SignalFolder, send


def received(folder: SignalFolder, *handled: str) -> list[tuple[str, bool]]:
    found = folder.receive(set(map(digest, handled)))
    return [(each.id, isinstance(each.document, dict)) for each in found]


def test_signals_in_a_folder(tmp_path: Path) -> None:
    times, place = [0.0, 1e12], tmp_path / "signals"
    folder = SignalFolder(str(place), clock=lambda: times[0], now=lambda: times[1])

    def look(*handled: str) -> list[tuple[str, bool]]:
        times[0] += 1
        return received(folder, *handled)

    assert look() == []  # there is no folder yet
    sent = send(str(place), {"type": "execute-snapshot", "data": {"data-collections": ["a.b"]}})
    assert look() == [(sent, True)]
    assert received(folder) == []  # too early
    assert look(sent) == []
    (place / "b.json").write_text('{"id": "other", "type": "stop-snapshot"}')
    (place / "a.json").write_text('{"id": null}')
    (place / "c.json").write_text('{"n": {"$numberDecimal": "five"}}')
    (place / "notes.txt").write_text("{}")
    (place / "_d.json").write_text("{}")
    (place / "e.json").write_text("x" * 70_000)
    assert look(sent) == [("a", True), ("other", True)]
    assert received(folder, sent, "a", "other") == [("c", False), ("e", False)]  # at once
    folder.remove({digest(sent), digest("other")})
    assert sorted(each.name for each in place.glob("*.json")) == [
        "_d.json", "a.json", "c.json", "e.json",
    ]  # fmt: skip


def test_a_waiting_signal_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    times = [1.0]
    folder = SignalFolder(str(tmp_path), clock=lambda: times[0])
    (tmp_path / "a.json").write_text('{"id": "first"}')
    assert received(folder) == [("first", True)]
    (tmp_path / "a.json").write_text('{"id": "second"}')
    times[0] += 2.0
    assert received(folder) == [("second", True)]
    (tmp_path / "a.json").write_text('{"id": "the third"}')
    folder.remove({digest("second")})
    times[0] += 2.0
    assert received(folder, "second") == [("the third", True)]
    folder._folder = MagicMock(wraps=folder._folder)
    folder._folder.listed.side_effect = OSError("503")
    folder.remove({digest("the third")})  # the next poll says that the folder cannot be read


def test_processed_signals_that_cannot_be_removed_end_the_query(tmp_path: Path) -> None:
    for number in range(51):
        (tmp_path / f"{number:02}.json").write_text("{}")
    folder, names = SignalFolder(str(tmp_path)), [f"{number:02}" for number in range(51)]
    for count in range(0, 50, 2):
        assert received(folder, *names[:count]) == [(each, True) for each in names[count:][:2]]
    folder._folder = MagicMock(wraps=folder._folder)
    folder._folder.remove.side_effect = PermissionError("read-only")
    folder.remove({digest("00")})
    with pytest.raises(StreamError, match="50 files of processed signals, which the query cannot"):
        received(folder, *names[:50])


def test_a_file_whose_name_cannot_be_read_ends_the_query_with_the_remedy(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json")).write_text("{}")
    with pytest.raises(StreamError, match="remove files whose names are no UTF-8"):
        SignalFolder(str(tmp_path)).receive(())


def test_a_file_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    times = [1.0, 1000.0]
    folder = SignalFolder(str(tmp_path), clock=lambda: times[0], now=lambda: times[1])
    (tmp_path / "a.json").write_text('{"type": "stop')
    os.utime(tmp_path / "a.json", (995.0, 995.0))
    assert received(folder) == []
    times[:] = [2.0, 1006.0]
    assert received(folder) == [("a", False)]
    folder = SignalFolder(str(tmp_path), now=lambda: times[1])
    folder._folder = MagicMock(wraps=folder._folder)
    folder._folder.text.side_effect = PermissionError("Permission denied")
    assert folder.receive(()) == [ReceivedSignal("a", "Permission denied")]
