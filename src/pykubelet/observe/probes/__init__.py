"""Startup, liveness and readiness: asked of running containers, told as results."""
