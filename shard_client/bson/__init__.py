"""BSON values, KeyStrings and resume tokens as bytes: pure, and shared by all packages.

It imports the standard library and ``bson`` only. Its error is ``values.MalformedValueError``.
"""
