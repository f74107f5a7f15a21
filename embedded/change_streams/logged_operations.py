"""Decomposition of an oplog entry into operations, in particular of transactions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bson.timestamp import Timestamp

from embedded.oplog import APPLIED_SEPARATELY, Oplog, OplogEntry


@dataclass(frozen=True, slots=True)
class LoggedOperation:
    """One operation that may become an event.

    ``entry`` is the oplog entry, or the entry inside a transaction. ``ts`` is the cluster time of
    the event, ``txn_op_index`` its index in the transaction (None outside of a transaction).
    ``image_ts`` and ``image_index`` identify the pre-image.
    """

    entry: Mapping[str, Any]
    ts: Timestamp
    wall: Any
    image_ts: Timestamp
    image_index: int = 0
    txn_op_index: int | None = None
    lsid: Mapping[str, Any] | None = None
    txn_number: int | None = None


def operations(oplog: Oplog, entry: OplogEntry) -> Iterator[LoggedOperation]:
    """Yield the operations of ``entry``: itself, or those of the transaction that it commits.

    The index counts all operations of a transaction, including those that the stream filters out
    (docs/protocol.md#events). A plain ``applyOps`` command, which is no transaction, yields none
    (docs/protocol.md#sharded-cluster).
    """
    command = entry["o"] if entry["op"] == "c" else {}
    separate = entry.get("multiOpType") == APPLIED_SEPARATELY
    if "applyOps" in command and "txnNumber" not in entry and not separate:
        return
    if "applyOps" not in command and "commitTransaction" not in command:
        if "abortTransaction" not in command:
            yield LoggedOperation(entry, entry["ts"], entry.get("wall"), entry["ts"])
        return
    if command.get("prepare") or command.get("partialTxn"):
        return
    chain = [entry] if separate else _chain(oplog, entry)
    index = 0
    for link in chain:
        for place, operation in enumerate(link["o"].get("applyOps", ())):
            yield LoggedOperation(
                operation,
                entry["ts"],
                entry.get("wall"),
                link["ts"],
                place,
                index,
                None if separate else entry.get("lsid"),
                None if separate else entry.get("txnNumber"),
            )
            index += 1


def _chain(oplog: Oplog, last: OplogEntry) -> list[OplogEntry]:
    """Return the entries of one transaction, oldest first."""
    links = [last]
    while (before := links[-1].get("prevOpTime")) and before["ts"] != Timestamp(0, 0):
        link = oplog.at(before["ts"])
        if link is None:
            break
        links.append(link)
    return links[::-1]
