"""The kit: cells, mailboxes, supervision, single-flight work, clock, back-off, logging. No Kubernetes in here."""
