"""Who may do what: certificates, tokens, authentication, RBAC and node authorization."""
