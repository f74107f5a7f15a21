"""The server side: client connections, their requests in order, and the replies."""
