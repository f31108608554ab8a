"""The node's web page."""
