"""Removes dead containers and sandboxes, and rotates container logs."""
