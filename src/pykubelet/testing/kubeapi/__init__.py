"""A double of the API server."""
