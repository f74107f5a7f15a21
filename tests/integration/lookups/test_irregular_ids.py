"""Documents whose _id has an array with irregular element names, which drivers never write."""

import struct
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from tests.harness.clusters import TestCluster
from tests.integration.lookups.both import Both, Data, documents, since, tick


def array(*names: str) -> RawBSONDocument:
    """Return {a: [1, …]} whose elements have these names."""
    items = bson.encode(dict.fromkeys(names, 1))
    return RawBSONDocument(struct.pack("<i", len(items) + 8) + b"\x04a\0" + items + b"\0")


def of_all_depths(name: str) -> list[Any]:
    inner = RawBSONDocument(bson.encode({"c": [array(name)]}))
    return [array(name), {"b": array(name)}, {"b": [inner]}, bson.Code("f", array(name))]


# What servers do with such an _id when they scan an index for several values at once: one side of
# the regular name they pass it by, on the other they loop.
PASSED_BY: list[Any] = [array("", "1"), array("0", "1", "-"), *of_all_depths("-")]
LOOPED: list[Any] = [array("1", "0"), array("0", "1", "x"), *of_all_depths("7")]


@pytest.mark.parametrize("ids", [PASSED_BY, LOOPED], ids=["passed by", "looped"])
@pytest.mark.parametrize("key", [None, {"k": 1}, {"_id": "hashed"}], ids=str)
def test_their_documents_are_found(
    both: Both, db: Data, cluster: TestCluster, key: dict[str, Any] | None, ids: list[Any]
) -> None:
    if not cluster.real:
        pytest.skip("the embedded cluster names the elements anew")
    if key is not None:
        db.client.admin.command("shardCollection", f"{db.name}.a", key=key)
    start = tick(db.client)
    db.a.insert_many([{"_id": n, "k": n} for n in range(3)])
    for n, irregular in enumerate(ids):
        whole = {"_id": irregular, "k": ids[-n]}
        db.a.insert_one(whole)
        db.a.update_one(whole, {"$set": {"v": n}})
        db.a.update_one({"_id": n % 3, "k": n % 3}, {"$set": {"v": n}})
    found = documents(both.read(db.name, "a", options=since(start)))
    assert [each["v"] for each in found[::2]] == [*range(len(ids))]
    assert [each["_id"] for each in found[1::2]] == [n % 3 for n in range(len(ids))]
