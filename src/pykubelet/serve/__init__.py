"""The ports of the agent. Reads only published state."""
