"""What becomes of Events where there is no API server: a line in the log, and each pod's recent past."""
