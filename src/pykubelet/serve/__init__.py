"""The ports of the agent. Reads published state only."""
