"""Read the feed of a cluster with users: log in with SCRAM-SHA-256, then receive the changes.

Usage: MERGEROUTER_PASSWORD=… read_secured_feed.py USER [HOST PORT]

The user is one of the database admin that may read shop.orders.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import socket
import sys
from typing import Any, TextIO


def exchange(feed: TextIO, **login: str) -> dict[str, Any]:
    """Send one step of the login and return the answer."""
    feed.write(json.dumps({"login": login}) + "\n")
    feed.flush()
    answer: dict[str, dict[str, Any]] = json.loads(feed.readline())
    if "error" in answer:
        raise SystemExit(f"the login failed: {answer['error']}")
    return answer["login"]


def log_in(feed: TextIO, user: str, password: str) -> None:
    """Log in as RFC 7677 describes it; the password is not sent."""
    name, nonce = user.replace("=", "=3D").replace(",", "=2C"), secrets.token_urlsafe(24)
    first = f"n={name},r={nonce}"
    answer = exchange(feed, mechanism="SCRAM-SHA-256", authSource="admin", payload=f"n,,{first}")
    challenge = answer["payload"]
    values = dict(part.split("=", 1) for part in challenge.split(","))
    salt, rounds = base64.b64decode(values["s"]), int(values["i"])
    if not values["r"].startswith(nonce) or rounds < 4096:
        raise SystemExit("the server's challenge is none of this login")
    final = f"c=biws,r={values['r']}"
    signed = f"{first},{challenge},{final}".encode()
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = exchange(feed, payload=f"{final},p={base64.b64encode(proof).decode()}")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    expected = base64.b64encode(hmac.digest(server_key, signed, "sha256")).decode()
    if not hmac.compare_digest(answer["payload"], f"v={expected}"):
        raise SystemExit("the server does not know the password either")


def main(user: str, host: str = "127.0.0.1", port: str = "27021") -> None:
    """Print each change of shop.orders."""
    with (
        socket.create_connection((host, int(port))) as connection,
        connection.makefile("rw") as feed,
    ):
        log_in(feed, user, os.environ["MERGEROUTER_PASSWORD"])
        feed.write(json.dumps({"database": "shop", "collection": "orders"}) + "\n")
        feed.flush()
        print("watching", flush=True)
        for line in feed:
            change = json.loads(line)
            if "error" in change:
                raise SystemExit(f"the stream ended: {change['error']}")
            print(change["operationType"], change.get("documentKey", {}).get("_id"), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
