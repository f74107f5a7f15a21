"""Roles that a user creates: createRole, dropRole, rolesInfo; and the roles in arguments."""

from typing import Any

from embedded.access.builtin_roles import builtin_privileges
from embedded.access.privileges import parse_privileges
from embedded.access.users import ROLES, document_id, role_document
from embedded.clients import UserName
from embedded.commands.request import Request, command, required_list
from embedded.errors import bad_value, failed_to_parse
from embedded.storage.bson_values import Document, IdKey, id_key
from shard_client.errors import CommandError


@command("createRole")
async def create_role(request: Request) -> Document:
    """Create a role with privileges and other roles.

    Raises:
        CommandError: 51002 if the role exists; 31 RoleNotFound; 9 for malformed privileges.
    """
    name = UserName(str(request.command["createRole"]), request.database)
    listed = required_list(request, "privileges")
    roles = given_roles(request, required_list(request, "roles"))
    users = request.mongod.access.users
    if builtin_privileges(*name) is not None:
        raise bad_value("Cannot create roles with the same name as a built-in role")
    if users.role(name) is not None:
        raise CommandError(51002, f'Role "{name}" already exists', code_name="Location51002")
    try:
        parse_privileges(listed)
    except ValueError as error:
        raise failed_to_parse(str(error)) from None
    document = {
        "_id": document_id(name),
        "role": name.user,
        "db": name.database,
        "privileges": listed,
        "roles": roles,
    }
    store(request, ROLES, id_key(document["_id"]), document)
    return {}


@command("dropRole")
async def drop_role(request: Request) -> Document:
    """Drop a role; users that have it lose its privileges.

    Raises:
        CommandError: 31 RoleNotFound.
    """
    name = UserName(str(request.command["dropRole"]), request.database)
    if request.mongod.access.users.role(name) is None:
        raise _not_found(name)
    store(request, ROLES, id_key(document_id(name)), None)
    return {}


@command("rolesInfo")
async def roles_info(request: Request) -> Document:
    """Return a role that a user has created, or a built-in one, with its privileges."""
    asked = request.command["rolesInfo"]
    given = asked if isinstance(asked, list) else [asked]
    users = request.mongod.access.users
    found = []
    for each in given:
        role = _parsed(request, each)
        if users.roles_exist([role]) is not None:
            continue
        name = UserName(role["role"], role["db"])
        document = users.role(name)
        inherited, privileges = users.inherited([role])
        shown = {
            **role,
            "isBuiltin": document is None,
            "roles": [] if document is None else document["roles"],
            "inheritedRoles": [each for each in inherited if each != role],
        }
        if request.command.get("showPrivileges"):
            shown["privileges"] = [] if document is None else document["privileges"]
            shown["inheritedPrivileges"] = privileges.listed()
        found.append(shown)
    return {"roles": found}


def given_roles(request: Request, listed: list[Any]) -> list[Document]:
    """Return the roles in an argument, each as ``{role, db}``.

    Raises:
        CommandError: 31 RoleNotFound; 2 BadValue if one is no role.
    """
    roles = [_parsed(request, each) for each in listed]
    missing = request.mongod.access.users.roles_exist(roles)
    if missing is not None:
        raise _not_found(missing)
    return roles


def store(request: Request, namespace: str, key: IdKey, document: Document | None) -> None:
    """Write a user or role, or delete it if ``document`` is None."""
    mongod = request.mongod
    collection = mongod.catalog.get(namespace)
    if collection is None:
        database, _, name = namespace.partition(".")
        collection = mongod.create_collection(database, name)
    before = collection.get(key)
    unit = request.unit
    if document is None:
        if before is not None:
            unit.delete(collection, before, 0)
    elif before is None:
        unit.insert(collection, document, 0)
    else:
        unit.update(collection, before, document, document, 0)
    mongod.access.users.changed()


def _parsed(request: Request, given: Any) -> Document:
    if isinstance(given, str):
        return role_document(given, request.database)
    if isinstance(given, dict) and all(isinstance(given.get(each), str) for each in ("role", "db")):
        return role_document(given["role"], given["db"])
    raise bad_value("Role name must be either a document or string")


def _not_found(name: UserName) -> CommandError:
    return CommandError(31, f"Could not find role: {name}", code_name="RoleNotFound")
