"""The log's lines about logins, denied actions and the configuration are those of mongos."""

import json
from contextlib import suppress
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, on_real_servers
from tests.integration.security.clients import Servers, client, stream

AUDITED, UNKNOWN = "audited", "unaudited"
OPTIONS, FAILED, SUCCEEDED, DENIED = 21951, 20249, 20250, 20436

pytestmark = on_real_servers("log for getLog")


def lines(address: str, *numbers: int) -> list[dict[str, Any]]:
    """Return the server's latest lines with these ids."""
    with client(address, "root") as root:
        logged = [json.loads(line) for line in root.admin.command("getLog", "global")["log"]]
    return [line for line in logged if line.get("id") in numbers]


@pytest.mark.parametrize("kind", ["router", "alone"])
def test_logins_are_logged_as_by_mongos(servers: Servers, kind: str) -> None:
    addresses = (servers.mongos, getattr(servers, kind))
    with client(servers.mongos, "root") as root:
        root.admin.command("createUser", AUDITED, pwd=AUDITED, roles=[])
    answers = []
    try:
        for address in addresses:
            before = lines(address, FAILED, SUCCEEDED)
            for user, password in ((AUDITED, AUDITED), (AUDITED, "x"), (UNKNOWN, "x")):
                for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
                    login = {"username": user, "password": password, "authMechanism": mechanism}
                    with (
                        Client(f"mongodb://{address}/", **login) as connected,
                        suppress(OperationFailure),
                    ):
                        connected.admin.command("ping")
            of_these = [
                line
                for line in lines(address, FAILED, SUCCEEDED)
                # By content: a full log has dropped some of the lines of before.
                if line not in before and line["attr"]["principalName"] in (AUDITED, UNKNOWN)
            ]
            for line in of_these:
                assert line["attr"].pop("remote").startswith("127.0.0.1:")
                assert ("error" in line["attr"]) == (line["id"] == FAILED)
                line["attr"].pop("error", None)
            answers.append(
                [(line["c"], line["id"], line["msg"], line["attr"]) for line in of_these]
            )
    finally:
        with client(servers.mongos, "root") as root:
            root.admin.command("dropUser", AUDITED)
    assert answers[1] == answers[0]
    assert {number for _, number, _, _ in answers[1]} == {FAILED, SUCCEEDED}


def test_denied_actions_are_logged_as_by_mongos(servers: Servers) -> None:
    answers = []
    for address in (servers.mongos, servers.router):
        with client(address, "reader") as reader, pytest.raises(OperationFailure):
            reader.denied.command(stream("c"))
        errors = [
            line["attr"]["error"]
            for line in lines(address, DENIED)
            if "not authorized on denied" in line["attr"]["error"]["errmsg"]
        ]
        answers.append(errors[-1])
    shown = [each.pop("errmsg").partition(", lsid: ")[0] for each in answers]
    assert shown[1] == shown[0]
    assert answers[1] == answers[0] == {"code": 13, "codeName": "Unauthorized"}
