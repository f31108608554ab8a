"""Authentication and authorization of requests to the authenticated port."""
