"""TLS towards clients: handshakes, and the certificates of both sides."""
