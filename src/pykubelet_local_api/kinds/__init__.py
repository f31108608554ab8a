"""The kinds that are served, with their names, subresources and schemas."""
