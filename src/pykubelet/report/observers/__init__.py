"""Notifies process extensions that observe pods. Imported only if there are some."""
