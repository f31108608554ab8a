"""`pykubelet images`: images of other namespaces of containerd, such as Docker's, for pods. A program beside the agent."""
