"""gRPC in Python, without TLS: a client for calls and server streams over one HTTP/2 connection, and a server."""
