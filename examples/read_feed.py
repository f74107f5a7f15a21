"""Read the feed: send a request as one line of JSON, receive one line for each change.

Usage: read_feed.py [HOST PORT]
"""

import json
import socket
import sys


def main(host: str = "127.0.0.1", port: str = "27021") -> None:
    """Print each change of shop.orders."""
    with (
        socket.create_connection((host, int(port))) as connection,
        connection.makefile("rw") as feed,
    ):
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
