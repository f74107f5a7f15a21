"""Two shards with a key file and users of graded rights, and routers in front of them."""

from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest

from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings, write_key_file
from tests.integration.security.clients import USERS, Servers


@pytest.fixture(scope="package")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key_file(tmp_path_factory.mktemp("security"))


@pytest.fixture(scope="package")
def secured(key_file: Path) -> Iterator[TestCluster]:
    """Two shards whose members log in with the key file."""
    with start_cluster(2, settings=ServerSettings(noop_interval=1, key_file=key_file)) as real:
        yield real


@pytest.fixture(scope="package")
def servers(
    secured: TestCluster, key_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    password = tmp_path_factory.mktemp("router") / "password"
    password.write_text("swordfish\n")
    password.chmod(0o600)
    admin = pymongo.MongoClient(secured.mongos_uri).admin
    for user, roles in USERS.items():
        admin.command("createUser", user, pwd=user, roles=roles)
    # The router's own user on the mongos looks documents up.
    admin.command("createUser", "router", pwd="swordfish", roles=["readAnyDatabase"])
    for database in ("db", "other"):
        admin.client[database].c.insert_one({})
    options = {"userCacheInvalidationIntervalSecs": 1, "authFailedDelayMs": 0}
    config = tmp_path_factory.mktemp("router") / "router.yaml"
    config.write_text(
        f"security:\n  keyFile: {key_file}\n  user: router\n  passwordFile: {password}\n"
    )
    upstream = f"mongodb://{secured.mongos}/"
    with (
        start_router(secured.configdb, upstream, set_parameter=options, config=config) as router,
        start_router(secured.configdb, keyFile=key_file, set_parameter=options) as alone,
    ):
        yield Servers(
            secured.mongos, f"127.0.0.1:{router.port}", f"127.0.0.1:{alone.port}", secured
        )
