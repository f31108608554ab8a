"""The prober: startup, liveness and readiness probes of running containers, published as results."""
