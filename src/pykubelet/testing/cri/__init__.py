"""A double of the container runtime."""
