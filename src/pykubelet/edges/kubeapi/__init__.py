"""The client of the API server: kubeconfig, credentials, requests, list and watch."""
