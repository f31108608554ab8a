"""Defaults, admission and validation of objects, by kind. Pure."""
