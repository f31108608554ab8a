"""The endpoints of the agent's ports, and the table that declares them."""
