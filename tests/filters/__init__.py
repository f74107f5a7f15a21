"""The router's own evaluation of filters, held against a real mongod."""
