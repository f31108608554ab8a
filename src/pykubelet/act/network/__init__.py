"""What the node keeps in the host's packet filter for others."""
