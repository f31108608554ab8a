"""HTTP/1.1: messages read by llhttp within limits of our own, and connections of a client."""
