"""Mirror pods: how the API server knows of the static pods of this node. Made and removed in the background."""
