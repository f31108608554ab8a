"""`pykubelet csi-local`: a CSI driver for volumes on one machine, a process of its own."""
