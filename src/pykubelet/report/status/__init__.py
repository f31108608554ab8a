"""The status manager: projects the status of each pod (`project`), and patches it at the API server (`publish`)."""
