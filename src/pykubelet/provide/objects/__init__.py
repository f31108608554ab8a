"""Fetches the API objects that pods refer to."""
