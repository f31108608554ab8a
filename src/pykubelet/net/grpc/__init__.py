"""gRPC as a client, in plain Python: calls and server streams over one HTTP/2 connection, without TLS."""
