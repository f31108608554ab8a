"""Network protocols, built on libraries. Contains nothing specific to Kubernetes."""
