"""The admin port: metrics, health and status over HTTP (docs/admin.md)."""
