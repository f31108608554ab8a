"""Patches of objects and server-side apply. Pure."""
