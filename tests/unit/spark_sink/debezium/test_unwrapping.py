"""Documents as the values of messages; tests/debezium compares them with the transform's own."""

from __future__ import annotations

from typing import Any

import pytest

from spark_sink.debezium.options import MessageOptions
from spark_sink.debezium.unwrapping import Unwrap
from spark_sink.errors import OptionError
from tests.unit.spark_sink.debezium.test_messages import event, messages


def unwrapped(*events: bytes, tombstones: bool = True, **properties: str) -> list[tuple[Any, Any]]:
    named = {name.replace("__", "."): text for name, text in properties.items()}
    found = messages(*events, tombstones=tombstones, transform=Unwrap.parse(named))
    return [(key, value) for _, key, value in found]


@pytest.mark.parametrize(
    ("mode", "values"),
    [
        ("drop", []),
        ("tombstone", [None]),
        ("rewrite", [{"__deleted": True, "__op": "d"}]),
        ("rewrite-with-tombstone", [{"__deleted": True, "__op": "d"}, None]),
        ("delete-to-tombstone", [None]),
    ],
)
def test_a_delete_in_each_mode(mode: str, values: list[Any]) -> None:
    given = {"delete__tombstone__handling__mode": mode, "add__fields": "op"}
    assert unwrapped(event("delete"), **given) == [({"id": 1004}, each) for each in values]
    image = event("delete", fullDocumentBeforeChange={"_id": 1004, "a": 1})
    with_image = [each and {"_id": 1004, "a": 1, **each} for each in values]
    assert unwrapped(image, **given) == [({"id": 1004}, each) for each in with_image]


@pytest.mark.parametrize(
    "properties",
    [{"add.headers": "op"}, {"drop.tombstones": "true"}, {"add.fields": "transaction.id"},
     {"add.fields": "nothing"}, {"delete.tombstone.handling.mode": "none"}],
    ids=str,
)  # fmt: skip
def test_what_is_not_made_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        Unwrap.parse(properties)


@pytest.mark.parametrize("other", [{"schemas": True}, {"transactions": True}, {"version": "2.6"}])
def test_it_excludes_other_forms_of_messages(other: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="unwrap and outbox make messages of version"):
        MessageOptions("p", transform=Unwrap(), **other)
