"""Users of the cluster, which are on the config server."""

from embedded.mongos.request import Request
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError

ON_CONFIG_SERVER = (
    "createUser", "updateUser", "dropUser", "dropAllUsersFromDatabase", "grantRolesToUser",
    "revokeRolesFromUser", "createRole", "dropRole", "rolesInfo",
)  # fmt: skip
"""Commands on users and roles."""


async def on_config_server(request: Request) -> Document:
    """Run a command on users and roles on the config server.

    Raises:
        CommandError: 20 IllegalOperation on the database local; the config server's error.
    """
    if request.database == "local":
        raise CommandError(
            20, "Can't use 'local' database through mongos", code_name="IllegalOperation"
        )
    return await request.send(request.catalog.config, dict(request.command))


async def users_info(request: Request) -> Document:
    """Return users that the client may see."""
    request.state.access.check_users_info(request.database, request.command, request.client)
    return await on_config_server(request)
