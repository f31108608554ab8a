"""The endpoints of the ports, and the table that declares them."""
