"""`pykubelet replay` and `pykubelet simulate`: decisions of the agent without an agent, as a program beside it."""
