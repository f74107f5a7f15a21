"""TLS towards clients: accepting sockets, handshakes, and the certificates of clients."""
