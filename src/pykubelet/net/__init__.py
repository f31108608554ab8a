"""Network protocols, on libraries. Knows nothing of Kubernetes."""
