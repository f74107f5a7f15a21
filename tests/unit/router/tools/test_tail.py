"""``mergerouter tail``: its options, its lines, and the file of its place."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import bson
import pytest
import typer
from bson import DatetimeMS, ObjectId, Timestamp
from pymongo import MongoClient
from typer.testing import CliRunner

from router.tools import tail as module
from router.tools.tail import as_text, read_position, tail, write_position

TOKEN = {"_data": "826B00045C000000012B0229296E04"}


def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(tail)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


def test_the_position_is_kept_in_a_file(tmp_path: Path) -> None:
    place = tmp_path / "place"
    assert read_position(place) is None
    write_position(place, {"_data": "1"})
    write_position(place, TOKEN)
    assert read_position(place) == TOKEN
    assert [each.name for each in tmp_path.iterdir()] == ["place"]


def test_an_event_is_one_line() -> None:
    event = {
        "_id": TOKEN,
        "operationType": "update",
        "clusterTime": Timestamp(1795163230, 1),
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": ObjectId("6b024b148d4d29b7299ee49d")},
        "updateDescription": {"updatedFields": {"text": "two\nlines"}, "removedFields": []},
    }
    line = re.sub(r"\x1b\[[0-9;]*m", "", as_text(event))
    assert "\n" not in line
    assert line.startswith("2026-11-20T")
    _time, kind, namespace, rest = line.split(maxsplit=3)
    assert (kind, namespace) == ("update", "shop.orders")
    assert json.loads(rest.partition(" updateDescription ")[0]) == {
        "_id": {"$oid": "6b024b148d4d29b7299ee49d"}
    }


def test_an_event_without_the_fields_that_a_pipeline_drops_is_printed() -> None:
    line = re.sub(r"\x1b\[[0-9;]*m", "", as_text({"_id": TOKEN, "documentKey": {"_id": 1}}))
    assert json.loads(line) == {"_id": 1}


def test_text_that_is_not_utf_8_and_far_dates_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"text": "a?", "date": DatetimeMS(2**62)}
    raw = bson.encode({"_id": TOKEN, "fullDocument": document}).replace(b"a?", b"a\xff")

    @contextmanager
    def watch(client: MongoClient[dict[str, Any]], *_: Any) -> Iterator[Any]:
        stream = _Endless()
        stream.event = bson.decode(raw, client.codec_options)
        yield stream

    monkeypatch.setattr(module, "_watch", watch)
    result = invoke("--json", "-n", "1")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["fullDocument"]["text"] == "a\ufffd"


class _Endless:
    """A stream whose events never end; at the third, the process is asked to end."""

    seen, alive, resume_token = 0, True, TOKEN

    def __init__(self) -> None:
        self.event: dict[str, Any] | None = {"_id": TOKEN, "operationType": "insert"}

    def try_next(self) -> dict[str, Any] | None:
        self.seen += 1
        return self.event


def test_the_position_goes_on_without_events(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = _Endless()
    stream.event = None

    def once() -> None:
        stream.alive = False

    monkeypatch.setattr(module, "_watch", lambda *_: nullcontext(stream))
    monkeypatch.setattr(stream, "try_next", once)
    assert invoke("--resume-file", str(tmp_path / "place")).exit_code == 0
    assert read_position(tmp_path / "place") == TOKEN


def test_a_signal_while_an_event_is_printed_ends_the_command_with_status_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, echo = _Endless(), typer.echo

    def interrupted(*arguments: Any, **options: Any) -> None:
        echo(*arguments, **options)
        if stream.seen == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(module, "_watch", lambda *_: nullcontext(stream))
    monkeypatch.setattr(typer, "echo", interrupted)
    result = invoke("shop.orders", "--json")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 3
