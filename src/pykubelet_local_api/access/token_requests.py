"""TokenRequests (`serviceaccounts/NAME/token`), and the tokens in Secrets. Pure but for new identifiers of tokens.

Source: KEP-1205 (bound tokens), KEP-4193; what a node may request is restricted as NodeRestriction does it.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable

from pykubelet.base.manifests.validation import errors as fields
from pykubelet_local_api.access.authorize import authorize
from pykubelet_local_api.access.node import node_of
from pykubelet_local_api.access.rbac import AccessAttributes
from pykubelet_local_api.access.tokens import LEGACY_ISSUER, AccountTokens, KubernetesClaims, ObjectRef, TokenClaims
from pykubelet_local_api.errors import StatusError, bad_request, forbidden, invalid, not_found
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import BY_PATH
from pykubelet_local_api.objects import Json, copied, is_deleting, name_of, namespace_of, timestamp, uid_of
from pykubelet_local_api.view import ObjectChange, RequestUser, Verb, View

#: The kind of the body and of the answer.
TOKEN_REQUEST = ResourceKind(
    "authentication.k8s.io", "v1", "TokenRequest", "tokenrequests", verbs=("create",), is_review=True
)
_GROUP = "authentication.k8s.io"
SHORTEST_S = 600
LONGEST_S = 1 << 32
DEFAULT_S = 3600
#: AccountTokens of pods with this life are valid for a year, because old clients do not read the renewed ones.
EXTENDED_FROM_S = 3607
EXTENDED_S = 365 * 24 * 3600
#: A token may name so many audiences, each with so many characters.
MOST_AUDIENCES = 64
LONGEST_AUDIENCE = 1024
SECRET_TYPE = "kubernetes.io/service-account-token"
_ACCOUNT_NAME = "kubernetes.io/service-account.name"
_ACCOUNT_UID = "kubernetes.io/service-account.uid"
_CORE = {name: BY_PATH["", "v1", name] for name in ("serviceaccounts", "pods", "nodes", "secrets")}
_BOUND = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


def answer_token_request(
    tokens: AccountTokens,
    namespace: str,
    name: str,
    body: Json,
    user: RequestUser,
    view: View,
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> Json:
    """The TokenRequest with its status. `body`: of the client, with fields of the right types. Raises StatusError."""
    spec = dict(body.get("spec") or {})
    metadata = dict(body.get("metadata") or {})
    node = node_of(user)
    if node:
        _check_node(node, namespace, name, spec, user, view)
    if metadata.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name", name) != name:
        why = "must match the service account name if specified"
        raise invalid(TOKEN_REQUEST, name, [fields.invalid("metadata.name", metadata["name"], why)])
    account = view.get("serviceaccounts", namespace, name)
    if account is None:
        raise not_found(_CORE["serviceaccounts"], name)
    uid = uid_of(account)
    if metadata.get("uid") and metadata["uid"] != uid:
        why = f"the UID in the token request ({metadata['uid']}) does not match the UID of the service account ({uid})"
        raise _conflict(_GROUP, "TokenRequest", name, why)
    audiences = list(spec.get("audiences") or tokens.audiences)
    spec |= {"audiences": audiences, "boundObjectRef": spec.get("boundObjectRef")}
    life = spec["expirationSeconds"] = (
        DEFAULT_S if spec.get("expirationSeconds") is None else int(spec["expirationSeconds"])
    )
    wrong_fields = token_request_errors(life, audiences)
    if wrong_fields:
        raise invalid(TOKEN_REQUEST, "", wrong_fields)
    bound, is_pod = _bound(name, namespace, spec.get("boundObjectRef"), view)
    now = int(view.now)
    warn_after = None
    valid_s = life
    if is_pod and life == EXTENDED_FROM_S and set(audiences) <= set(tokens.audiences):
        valid_s, warn_after = EXTENDED_S, now + life
    claims = TokenClaims(
        iss=tokens.issuer,
        sub=f"system:serviceaccount:{namespace}:{name}",
        aud=audiences,
        exp=now + valid_s,
        iat=now,
        nbf=now,
        jti=new_id(),
        kubernetes=KubernetesClaims(namespace, ObjectRef(name, uid), warnafter=warn_after, **bound),
    )
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": metadata | {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": timestamp(now)},
        "spec": spec,
        "status": {"token": tokens.sign(claims), "expirationTimestamp": timestamp(now + life)},
    }


def token_request_errors(life_s: int, audiences: list[str]) -> fields.Errors:
    """The wrong fields of a TokenRequest."""
    errors: fields.Errors = []
    path = "spec.expirationSeconds"
    if life_s < SHORTEST_S:
        errors.append(fields.invalid(path, life_s, "may not specify a duration less than 10 minutes"))
    if life_s > LONGEST_S:
        errors.append(fields.invalid(path, life_s, "may not specify a duration larger than 2^32 seconds"))
    if len(audiences) > MOST_AUDIENCES:
        errors.append(fields.too_many("spec.audiences", len(audiences), MOST_AUDIENCES))
    errors += [
        fields.too_long(f"spec.audiences[{index}]", LONGEST_AUDIENCE)
        for index, audience in enumerate(audiences[:MOST_AUDIENCES])
        if len(audience) > LONGEST_AUDIENCE
    ]
    return errors


def filled_secrets(tokens: AccountTokens, authority: bytes, secrets: Iterable[Json], view: View) -> list[ObjectChange]:
    """The changes that give Secrets of the type SECRET_TYPE their token, and delete those of accounts that are gone.

    `authority`: the certificate of the API, in PEM.
    """
    changes = []
    for secret in secrets:
        if secret.get("type") != SECRET_TYPE or is_deleting(secret):
            continue
        annotations = secret["metadata"].get("annotations") or {}
        namespace = namespace_of(secret)
        account = view.get("serviceaccounts", namespace, str(annotations.get(_ACCOUNT_NAME) or ""))
        if account is None or annotations.get(_ACCOUNT_UID) not in (None, "", uid_of(account)):
            changes.append(ObjectChange(Verb.DELETE, "secrets", secret))
            continue
        data = secret.get("data") or {}
        authority_text = base64.b64encode(authority).decode()
        if data.get("ca.crt") == authority_text and data.get("namespace") and data.get("token"):
            continue
        filled = copied(secret)
        new = filled["data"] = dict(data)
        new["ca.crt"] = authority_text
        new["namespace"] = data.get("namespace") or base64.b64encode(namespace.encode()).decode()
        if not data.get("token"):
            new["token"] = base64.b64encode(_legacy_token(tokens, account, name_of(secret)).encode()).decode()
        marks = {_ACCOUNT_NAME: name_of(account), _ACCOUNT_UID: uid_of(account)}
        filled["metadata"]["annotations"] = annotations | marks
        changes.append(ObjectChange(Verb.UPDATE, "secrets", filled))
    return changes


def _legacy_token(tokens: AccountTokens, account: Json, secret_name: str) -> str:
    namespace, name = namespace_of(account), name_of(account)
    return tokens.sign(
        TokenClaims(
            iss=LEGACY_ISSUER,
            sub=f"system:serviceaccount:{namespace}:{name}",
            legacy_namespace=namespace,
            legacy_secret=secret_name,
            legacy_account=name,
            legacy_uid=uid_of(account),
        )
    )


def _bound(account: str, namespace: str, ref: Json | None, view: View) -> tuple[dict[str, ObjectRef], bool]:
    """The claims about the object that the token is bound to, and whether that is a pod."""
    if not ref:
        return {}, False
    group, _, version = str(ref.get("apiVersion") or "").rpartition("/")
    kind, name = str(ref.get("kind") or ""), str(ref.get("name") or "")
    if group or kind not in _BOUND:
        raise bad_request(f"cannot bind token to object of type {group}/{version}, Kind={kind}")
    resource = _BOUND[kind]
    found = view.get(resource, "" if kind == "Node" else namespace, name)
    if found is None:
        raise not_found(_CORE[resource], name)
    spec = found.get("spec") or {}
    if kind == "Pod" and spec.get("serviceAccountName") != account:
        raise bad_request(
            f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
        )
    if ref.get("uid") and ref["uid"] != uid_of(found):
        why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record. "
        raise _conflict(group, kind, name, why + "The object might have been deleted and then recreated")
    claims = {kind.lower(): ObjectRef(name, uid_of(found))}
    if kind == "Pod" and spec.get("nodeName"):
        node = view.get("nodes", "", spec["nodeName"])
        claims["node"] = ObjectRef(spec["nodeName"], uid_of(node) if node else "")
    return claims, kind == "Pod"


def _conflict(group: str, kind: str, name: str, why: str) -> StatusError:
    shown = f"{kind}.{group}" if group else kind
    details = {"name": name} | ({"group": group} if group else {}) | {"kind": kind}
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {shown} "{name}": {why}', details)


def _check_node(node: str, namespace: str, name: str, spec: Json, user: RequestUser, view: View) -> None:
    """A node gets tokens of its own pods only, for audiences that these use."""
    ref = spec.get("boundObjectRef") or {}
    kind = _CORE["serviceaccounts"]
    if ref.get("apiVersion") != "v1" or ref.get("kind") != "Pod" or not ref.get("name"):
        raise forbidden(kind, name, "node requested token not bound to a pod")
    if not ref.get("uid"):
        raise forbidden(kind, name, "node requested token with a pod binding without a uid")
    pod = view.get("pods", namespace, ref["name"])
    if pod is None:
        raise not_found(_CORE["pods"], ref["name"])
    if ref["uid"] != uid_of(pod):
        why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record. "
        raise forbidden(kind, name, why + "The object might have been deleted and then recreated")
    if (pod.get("spec") or {}).get("nodeName") != node:
        raise forbidden(kind, name, "node requested token bound to a pod scheduled on a different node")
    audiences = spec.get("audiences") or [""]
    if len(audiences) > 1:
        raise forbidden(kind, name, "node may only request 0 or 1 audiences")
    audience = audiences[0]
    if _uses_audience(pod, audience, view):
        return
    wanted = AccessAttributes(
        user, "request-serviceaccounts-token-audience", resource=audience, namespace=namespace, name=name
    )
    if not authorize(wanted, view).is_allowed:
        why = f'audience "{audience}" not found in pod spec volume, {user.name} is not authorized to request tokens for this audience'
        raise forbidden(kind, name, why)


def _uses_audience(pod: Json, audience: str, view: View) -> bool:
    for volume in pod["spec"].get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            token = source.get("serviceAccountToken")
            if token is not None and (token.get("audience") or "") == audience:
                return True
        driver = _driver_of(pod, volume, view)
        found = view.get("csidrivers.storage.k8s.io", "", driver) if driver else None
        requests = ((found or {}).get("spec") or {}).get("tokenRequests") or ()
        if any((request.get("audience") or "") == audience for request in requests):
            return True
    return False


def _driver_of(pod: Json, volume: Json, view: View) -> str:
    """The CSI driver of a volume; empty if it has none."""
    if volume.get("csi"):
        return str(volume["csi"].get("driver") or "")
    claim_name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    if volume.get("ephemeral"):
        claim_name = f"{name_of(pod)}-{volume['name']}"
    if not claim_name:
        return ""
    claim = view.get("persistentvolumeclaims", namespace_of(pod), claim_name) or {}
    found = view.get("persistentvolumes", "", (claim.get("spec") or {}).get("volumeName") or "") or {}
    return str(((found.get("spec") or {}).get("csi") or {}).get("driver") or "")
