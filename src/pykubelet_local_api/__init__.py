"""A Kubernetes API for one node (`pykubelet local-api`): a program beside the agent, which joins it as it joins any API server."""
