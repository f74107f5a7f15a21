"""The router's evaluation of filters, compared with a real mongod's."""
