"""HTTP/1.1: messages parsed by llhttp within additional limits, a server, and connections of a client."""
