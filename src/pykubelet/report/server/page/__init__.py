"""The node's web page: its files. They need nothing from outside, and hold no data."""
