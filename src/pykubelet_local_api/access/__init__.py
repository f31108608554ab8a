"""Who may do what: certificates, tokens, authentication, RBAC and node authorization.

What others call:

- `authority.prepare(ApiPlace, now)` makes and renews all files (blocks; at the start, once a day, and when addresses change);
  `server_context`, `reload_context` and `agent_context` are the TLS contexts made of them.
- `tokens.open_token_key(folder)` and `AccountTokens`; `token_requests.answer_token_request` answers `serviceaccounts/NAME/token`,
  `token_requests.filled_secrets` is for a reconciler.
- `authenticate.authenticate`, then `authenticate.impersonated`: the user of a request. `authorize.check(AccessAttributes, view)`:
  403, or nothing. `authorize.authorize`: the same as a value.
- `bootstrap.bootstrap_changes(view)`: the default roles, at the start. `aggregation.aggregated_roles(view)`: for a reconciler.
- `escalation.check_role` and `check_binding`: before a role or binding is stored. `signing.check_subject` and `check_approval`: before
  a CertificateSigningRequest is stored, or approved.
- `reviews.review`: the answer to every kind with `is_review`, but Bindings.
- `signing.signed_requests(authority, view)`: for a reconciler, which reads `signing.READS`.
"""
