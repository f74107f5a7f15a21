"""The commands of an embedded mongod, one file for each family."""
