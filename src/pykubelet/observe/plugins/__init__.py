"""Registers plugins whose sockets appear in the plugins_registry directory (KEP-595)."""
