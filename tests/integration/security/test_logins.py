"""Logins, right and wrong: the router answers them as mongos does, and keeps secrets."""

import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, on_real_servers
from tests.integration.security.clients import Servers, client


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param("SCRAM-SHA-1", marks=on_real_servers("SCRAM-SHA-1")), "SCRAM-SHA-256"],
)
@pytest.mark.parametrize("kind", ["router", "alone"])
def test_each_mechanism_logs_in(servers: Servers, kind: str, mechanism: str) -> None:
    address = getattr(servers, kind)
    with client(address, "reader", authMechanism=mechanism) as reader:
        status = reader.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        assert status["authenticatedUsers"] == [{"user": "reader", "db": "admin"}]
        assert status["authenticatedUserRoles"] == [{"role": "read", "db": "db"}]
        resources = [each["resource"] for each in status["authenticatedUserPrivileges"]]
        assert {"db": "db", "collection": ""} in resources
        with reader.db.c.watch(max_await_time_ms=200) as watching:
            with client(servers.mongos, "writer") as writer:
                inserted = writer.db.c.insert_one({}).inserted_id
            assert watching.next()["documentKey"] == {"_id": inserted}
    wrong = {"username": "reader", "password": "x", "authMechanism": mechanism}
    with (
        Client(f"mongodb://{address}/", **wrong) as refused,
        pytest.raises(OperationFailure, match="Authentication failed") as failure,
    ):
        refused.admin.command("ping")
    assert failure.value.code == 18
