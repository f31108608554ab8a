"""Frames of WebSocket and SPDY: bytes to values and back."""
