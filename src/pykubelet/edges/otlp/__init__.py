"""Spans sent to a collector with OTLP, the protocol of OpenTelemetry. Imported only if `tracing` is configured."""
