"""The node's certificates: TLS bootstrap, rotation, the serving certificate and its TLS context."""
