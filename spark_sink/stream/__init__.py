"""The client of the router: change streams that survive failures.

The entrances are `router_client.RouterClient` and `event_stream.EventStream`.
"""
