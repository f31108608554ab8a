"""The resources that pods may use: allocatable resources, and the cgroups that enforce them."""
