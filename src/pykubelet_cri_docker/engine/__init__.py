"""Docker Engine: its HTTP API on a unix socket, as typed calls."""
