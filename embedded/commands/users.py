"""Users: createUser, updateUser, dropUser, their roles, and usersInfo.

A user is a document of admin.system.users on the server that has it: on the config server for the
users of a cluster, on a shard for its own.
"""

from collections.abc import Callable, Iterable

from bson.binary import Binary

from embedded.access.scram import MECHANISMS, make_credentials
from embedded.access.users import USERS, Account, document_id, named_users
from embedded.clients import UserName
from embedded.commands.request import Request, command, required_list
from embedded.commands.roles import given_roles, store
from embedded.errors import bad_value, type_mismatch
from embedded.storage.bson_values import Document, id_key
from shard_client.errors import CommandError
from shard_client.wire.authentication import EXTERNAL


@command("createUser")
async def create_user(request: Request) -> Document:
    """Create a user with a password and roles.

    Raises:
        CommandError: 51003 if the user exists; 31 RoleNotFound; 2 BadValue without a password.
    """
    name = _name(request)
    roles = given_roles(request, required_list(request, "roles"))
    if name.database == "local":
        raise bad_value("Cannot create users in the local database")
    if request.mongod.access.users.get(name) is not None:
        raise CommandError(51003, f'User "{name}" already exists', code_name="Location51003")
    document = {
        "_id": document_id(name),
        "userId": Binary(bytes(request.mongod.new_uuid()), 4),
        "user": name.user,
        "db": name.database,
        "credentials": _credentials(request, name),
        "roles": roles,
    }
    if "customData" in request.command:
        document["customData"] = request.field("customData", dict, {})
    _store(request, name, document)
    return {}


@command("updateUser")
async def update_user(request: Request) -> Document:
    """Replace a user's password, roles or custom data.

    Raises:
        CommandError: 11 UserNotFound; 31 RoleNotFound; 2 BadValue if there is nothing to update.
    """
    account = _existing(request)
    changes: Document = {}
    if "pwd" in request.command:
        changes["credentials"] = _credentials(request, account.name)
    if "roles" in request.command:
        changes["roles"] = given_roles(request, request.field("roles", list, []))
    if "customData" in request.command:
        changes["customData"] = request.field("customData", dict, {})
    if not changes:
        raise bad_value("Must specify at least one field to update in updateUser")
    _store(request, account.name, {**account.document, **changes})
    return {}


@command("dropUser")
async def drop_user(request: Request) -> Document:
    """Drop a user; its connections count as not logged in.

    Raises:
        CommandError: 11 UserNotFound.
    """
    _store(request, _existing(request).name, None)
    return {}


@command("dropAllUsersFromDatabase")
async def drop_all_users(request: Request) -> Document:
    """Drop all users of a database."""
    names = [name for name in _names(request) if name.database == request.database]
    for name in names:
        _store(request, name, None)
    return {"n": len(names)}


@command("grantRolesToUser")
async def grant_roles(request: Request) -> Document:
    """Give a user further roles.

    Raises:
        CommandError: 11 UserNotFound; 31 RoleNotFound.
    """
    return _change_roles(
        request, lambda has, given: has + [each for each in given if each not in has]
    )


@command("revokeRolesFromUser")
async def revoke_roles(request: Request) -> Document:
    """Take roles from a user.

    Raises:
        CommandError: 11 UserNotFound; 31 RoleNotFound.
    """
    return _change_roles(request, lambda has, given: [each for each in has if each not in given])


@command("usersInfo")
async def users_info(request: Request) -> Document:
    """Return users with their roles and, on request, their privileges and credentials."""
    asked = request.command["usersInfo"]
    request.mongod.access.check_users_info(request.database, request.command, request.client)
    users = request.mongod.access.users
    everywhere = isinstance(asked, dict) and asked.get("forAllDBs")
    if everywhere or (isinstance(asked, int | float) and not isinstance(asked, str)):
        names = [
            each for each in _names(request) if everywhere or each.database == request.database
        ]
    else:
        names = named_users(request.database, asked)
    accounts = [account for name in names if (account := users.get(name)) is not None]
    return {"users": [_described(request, account) for account in accounts]}


@command("_getUserCacheGeneration")
async def user_cache_generation(request: Request) -> Document:
    """Return an id that differs after each change of a user or role."""
    return {"cacheGeneration": request.mongod.access.users.generation}


def _described(request: Request, account: Account) -> Document:
    document = account.document
    shown = {name: value for name, value in document.items() if name != "credentials"}
    credentials = document["credentials"]
    if request.command.get("showCredentials"):
        shown["credentials"] = credentials
    shown["mechanisms"] = list(credentials) or ["external"]
    if request.command.get("showPrivileges"):
        shown["inheritedRoles"] = account.roles
        shown["inheritedPrivileges"] = account.privileges.listed()
        shown["inheritedAuthenticationRestrictions"] = []
    return shown


def _change_roles(
    request: Request,
    changed: Callable[[list[Document], list[Document]], list[Document]],
) -> Document:
    account = _existing(request)
    given = given_roles(request, required_list(request, "roles"))
    roles = changed(list(account.document["roles"]), given)
    _store(request, account.name, {**account.document, "roles": roles})
    return {}


def _name(request: Request) -> UserName:
    user = request.command[request.name]
    if not isinstance(user, str):
        raise type_mismatch(f"BSON field '{request.name}.{request.name}' is no string")
    if not user:
        raise bad_value("User document needs 'user' field to be non-empty")
    return UserName(user, request.database)


def _existing(request: Request) -> Account:
    name = _name(request)
    account = request.mongod.access.users.get(name)
    if account is None:
        shown = {
            "dropUser": f"User '{name}' not found",
            "updateUser": f"User {name} not found",
        }
        raise CommandError(
            11,
            shown.get(request.name, f'Could not find user "{name.user}" for db "{name.database}"'),
            code_name="UserNotFound",
        )
    return account


def _credentials(request: Request, name: UserName) -> Document:
    password = request.command.get("pwd")
    if name.database == EXTERNAL:
        if password is not None:
            raise bad_value("Cannot set the password for users defined on the '$external' database")
        return {"external": True}
    if password is None:
        raise bad_value(
            "Must provide a 'pwd' field for all user documents, except those with '$external' as "
            "the user's source db"
        )
    if not isinstance(password, str) or not password:
        raise bad_value("Password cannot be empty")
    mechanisms = request.field("mechanisms", list, list(MECHANISMS))
    for each in mechanisms:
        if each not in MECHANISMS:
            raise bad_value(f"Unknown auth mechanism '{each}'")
    return make_credentials(name.user, password, mechanisms)


def _names(request: Request) -> Iterable[UserName]:
    collection = request.mongod.catalog.get(USERS)
    documents = [] if collection is None else list(collection.documents())
    return [UserName(each["user"], each["db"]) for each in documents]


def _store(request: Request, name: UserName, document: Document | None) -> None:
    store(request, USERS, id_key(document_id(name)), document)
