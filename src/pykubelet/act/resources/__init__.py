"""What pods may take of the node: allocatable resources, and the control groups that enforce them."""
