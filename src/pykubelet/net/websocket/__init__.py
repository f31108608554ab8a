"""Encodes and decodes the frames of WebSocket and SPDY."""
