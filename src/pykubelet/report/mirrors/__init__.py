"""Mirror pods, which show the static pods of this node in the API server. Created and deleted in the background."""
