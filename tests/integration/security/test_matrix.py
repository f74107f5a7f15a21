"""Each user with each command: the router's answers are mongos's, in 18,000 cells."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clusters import Client, start_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings
from tests.integration.security.clients import Servers, client, start_routers
from tests.integration.security.matrix import BUILT_IN, ROLES, commands_of, outcome

_UNKNOWN = 59
_UNAUTHORIZED = 13
_MALFORMED = (9, 40415)


@pytest.fixture(scope="module")
def servers(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A cluster of its own: so many refusals displace all else from the servers' logs."""
    settings = ServerSettings(noop_interval=1, key_file=key_file)
    with start_cluster(2, settings=settings) as cluster:
        if not cluster.real:
            pytest.skip("the embedded mongos has few of the commands")
        with start_routers(cluster, key_file, tmp_path_factory.mktemp("matrix")) as started:
            yield started


@pytest.fixture(scope="module")
def addresses(servers: Servers, key_file: Path) -> Iterator[dict[str, str]]:
    """The addresses of a mongos and of routers, on a cluster with all users."""
    secured = servers.cluster
    admin = Client(secured.mongos_uri).admin
    for name, privileges in ROLES.items():
        admin.command("createRole", name, privileges=privileges, roles=[])
        admin.command("createUser", name, pwd=name, roles=[name])
    known = {each["user"] for each in admin.command("usersInfo")["users"]}
    for name, roles in BUILT_IN.items():
        if name not in known:
            admin.command("createUser", name, pwd=name, roles=roles)
    upstream = f"mongodb://{secured.mongos}/"
    parameters = {"authFailedDelayMs": 0}
    with start_router(
        secured.configdb, upstream, keyFile=key_file, workers=2, set_parameter=parameters
    ) as workers:
        yield {
            "mongos": servers.mongos,
            "upstream": servers.router,
            "alone": servers.alone,
            "workers": f"127.0.0.1:{workers.port}",
        }


@pytest.mark.parametrize("user", [None, "root", *ROLES, *BUILT_IN])
def test_each_command_gets_mongos_s_answer(addresses: dict[str, str], user: str | None) -> None:
    with ExitStack() as owned:
        clients = {
            name: owned.enter_context(client(address, user)) for name, address in addresses.items()
        }
        with Client(f"mongodb://root:root@{addresses['mongos']}") as r:
            commands = commands_of(r)
        mongos = clients.pop("mongos")
        differences = []
        for database, command in commands:
            expected = outcome(mongos, database, command)
            for name, router in clients.items():
                found = outcome(router, database, command)
                if found == expected or (name == "alone" and _deliberate(expected, found)):
                    continue
                differences.append((name, database, command, expected, found))
    assert len(commands) > 300
    assert not differences


def _deliberate(expected: Any, found: Any) -> bool:
    """Return whether a router without an upstream may differ so (docs/security.md)."""
    code, message = found
    if code == _UNKNOWN or message.startswith("mergerouter does not serve"):
        return True
    if expected[0] in _MALFORMED and code == _UNAUTHORIZED:  # rights are checked first
        return True
    return bool(
        (code, expected[0]) == (_UNAUTHORIZED, _UNAUTHORIZED)
        and message.endswith("requires authentication")
        and expected[1].endswith("may only be run against the admin database.")
    )
