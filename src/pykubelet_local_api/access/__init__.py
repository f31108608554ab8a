"""Who may do what: certificates, tokens, authentication, RBAC and node authorization.

What others call:

- `authority.prepare(ApiPlace, now)` makes and renews all files (blocks); `server_context` is made of them. `upkeep.CertificateUpkeep` does
  it again while the program runs.
- `tokens.open_token_key(folder)` and `AccountTokens`; `token_requests.answer_token_request` answers `serviceaccounts/NAME/token`,
  `token_requests.filled_secrets` is for a reconciler.
- `authenticate.authenticate`, then `authenticate.impersonated`: the user of a request. `authorize.check(AccessAttributes, view)`:
  403, or nothing. `authorize.authorize`: the same as a value.
- `bootstrap.bootstrap_changes(view)`: the default roles, at the start. `aggregation.aggregated_roles(view)`: for a reconciler.
- `admission.admit_write`: before a role, a binding or a CertificateSigningRequest is stored, or a request approved.
- `reviews.review`: the answer to every kind with `is_review`, but Bindings.
- `signing.signed_requests(authority, view)`: for a reconciler, which reads `signing.READS`.
"""
