"""Builds CRI requests from pods."""
