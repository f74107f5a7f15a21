"""Cluster times that servers signed: the router hands them out, and checks what clients send."""

import re
from typing import Any

import pytest
from bson import Int64, Timestamp
from pymongo.errors import OperationFailure

from tests.harness.clusters import on_real_servers
from tests.integration.security.clients import Servers, client, stream

pytestmark = on_real_servers("checks of signed times")


SIGNATURES = {
    "zero": {"hash": b"\0" * 20, "keyId": Int64(0)},
    "unknown key": {"hash": b"\1" * 20, "keyId": Int64(5)},
    "known key": {"hash": b"\1" * 20, "keyId": None},
}
"""Signatures of no server; for None the test puts the id of the cluster's key."""


@pytest.mark.parametrize("signature", SIGNATURES.values(), ids=SIGNATURES)
@pytest.mark.parametrize("user", ["reader", "root"])
def test_forged_client_times_are_answered_as_by_mongos(
    servers: Servers, user: str, signature: dict[str, Any]
) -> None:
    answers = []
    for address in (servers.mongos, servers.router):
        with client(address, user) as one, one.start_session() as session:
            known = one.admin.command("ping", session=session)["$clusterTime"]
            key = known["signature"]["keyId"] if signature["keyId"] is None else signature["keyId"]
            ahead = Timestamp(known["clusterTime"].time + 100_000, 1)
            forged = {"clusterTime": ahead, "signature": {**signature, "keyId": key}}
            session.advance_cluster_time(forged)
            try:
                one.admin.command("buildInfo", session=session)
                one.db.command(stream("c"), session=session)
                answers.append("ok")
            except OperationFailure as error:
                text = str((error.details or {}).get("errmsg"))
                answers.append((error.code, re.sub(r"\d{9,}", "N", text)))
    assert answers[1] == answers[0]
