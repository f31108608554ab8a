"""`pykubelet csi-local`: a CSI driver for volumes on one machine, a program beside the agent."""
