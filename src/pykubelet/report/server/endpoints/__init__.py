"""The endpoints of the agent's ports: `endpoint` is their type, `table` lists them all."""
