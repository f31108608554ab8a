"""`pykubelet cri-docker`: the container runtime interface over Docker Engine, a program beside the agent."""
