"""Logins, and the users of the cluster (docs/security.md)."""

from bson.binary import Binary

from embedded.access import logins
from embedded.access.roles import parse_roles
from embedded.access.users import UserName
from embedded.commands.request import Request, command
from embedded.errors import bad_value
from embedded.storage.bson_values import Document


@command("saslStart")
async def sasl_start(request: Request) -> Document:
    """Begin a login."""
    users = request.mongod.access.users
    return logins.start(users, request.client, request.database, request.command)


@command("saslContinue")
async def sasl_continue(request: Request) -> Document:
    """Go on with a login."""
    return logins.go_on(request.mongod.access.users, request.client, request.command)


@command("logout")
async def log_out(request: Request) -> Document:
    """End the login of this connection."""
    request.client.account = request.client.login = None
    return {}


@command("connectionStatus")
async def connection_status(request: Request) -> Document:
    """Return the user that is logged in, with its roles and, on request, its privileges."""
    account = request.mongod.access.account(request.client)
    info: Document = {"authenticatedUsers": [], "authenticatedUserRoles": []}
    if account is not None:
        info["authenticatedUsers"] = [{"user": account.name.user, "db": account.name.database}]
        info["authenticatedUserRoles"] = account.roles
    if request.command.get("showPrivileges"):
        info["authenticatedUserPrivileges"] = [] if account is None else account.privileges()
    return {"authInfo": info}


@command("createUser")
async def create_user(request: Request) -> Document:
    """Create a user with a password and built-in roles.

    Raises:
        CommandError: 51003 if the user exists; 31 RoleNotFound; 2 BadValue without a password.
    """
    password = request.field("pwd", str, "")
    if not password:
        raise bad_value("Must provide a 'pwd' field: users log in with passwords here")
    roles = parse_roles(request.database, request.field("roles", list, []))
    name = UserName(str(request.command["createUser"]), request.database)
    user_id = Binary(bytes(request.mongod.new_uuid()), 4)
    request.mongod.access.users.create(name, user_id, password, roles)
    return {}


@command("dropUser")
async def drop_user(request: Request) -> Document:
    """Drop a user; its connections count as not logged in.

    Raises:
        CommandError: 11 UserNotFound.
    """
    name = UserName(str(request.command["dropUser"]), request.database)
    request.mongod.access.users.drop(name)
    return {}


@command("usersInfo")
async def users_info(request: Request) -> Document:
    """Return the named users, or all of the database, with their privileges."""
    asked, users = request.command["usersInfo"], request.mongod.access.users
    if isinstance(asked, int | float):
        return {"users": [account.described() for account in users.listed(request.database)]}
    accounts = []
    for user in asked if isinstance(asked, list) else [asked]:
        named = user if isinstance(user, dict) else {"user": user}
        name = UserName(str(named.get("user")), str(named.get("db", request.database)))
        account = users.get(name)
        if account is not None:
            accounts.append(account.described())
    return {"users": accounts}


@command("_getUserCacheGeneration")
async def user_cache_generation(request: Request) -> Document:
    """Return an id that differs after each change of a user."""
    return {"cacheGeneration": request.mongod.access.users.generation}


@command("whatsmyuri")
async def whats_my_uri(request: Request) -> Document:
    """Return the client's address."""
    return {"you": request.client.peer}
