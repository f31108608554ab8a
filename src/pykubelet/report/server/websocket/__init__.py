"""WebSocket streams that end at the node: to the runtime they go on as SPDY (KEP-4006)."""
