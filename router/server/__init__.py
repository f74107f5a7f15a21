"""The listening side: connections of clients, their requests in order, the replies."""
