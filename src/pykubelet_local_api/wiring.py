"""Puts the program together: which part gets which."""

from __future__ import annotations

import contextlib
import platform
import socket
import ssl
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from typing import Any

from pykubelet.base.kit.cells import Cell, make_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.version import VERSIONS, Release
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.netlink import add_address, remove_address
from pykubelet.net.http.accept import AdmissionLimits, serve_connections
from pykubelet.net.http.checked_tls import CheckedTls
from pykubelet.net.http.client_tls import ClientTls
from pykubelet.net.http.server import Answer, HttpServer, ServerLimits
from pykubelet_local_api.access.bootstrap import AGENT_CLIENT
from pykubelet_local_api.access.files import AccessError
from pykubelet_local_api.access.place import AccessFiles, AuthorityPem, server_context
from pykubelet_local_api.access.preparing import AccessUpkeep
from pykubelet_local_api.access.tokens import AccountTokens, open_token_key
from pykubelet_local_api.access.upkeep import CertificateUpkeep, TlsContexts
from pykubelet_local_api.begin import BegunStart, LocalApiStartError, begin, listening_socket
from pykubelet_local_api.client import OwnClient
from pykubelet_local_api.clients import Clients
from pykubelet_local_api.control import (
    RegistryWriter,
    access_reconcilers,
    note_authority,
    note_changes,
    prepare_objects,
)
from pykubelet_local_api.directory.folder import Folder
from pykubelet_local_api.directory.loop import DirectoryLoop
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.schema import load_schemas
from pykubelet_local_api.objects import Json
from pykubelet_local_api.options import LocalApiOptions
from pykubelet_local_api.reconcile.loop import ReconcileLoop
from pykubelet_local_api.reconcile.services import ApiAddress
from pykubelet_local_api.reconcile.table import Setup, reconcilers
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.rest.handler import AskedRequest, ObjectsHandler
from pykubelet_local_api.store.database import Database, StoreError
from pykubelet_local_api.store.store import ObjectStore
from pykubelet_local_api.strategies.services import SERVICE_NETWORK
from pykubelet_local_api.streams.answer import StreamPath, answer_stream, needs_create, rest_of
from pykubelet_local_api.streams.transport import Upstreams

log = Log("local-api")
#: As the API server's limit of a request: an object has 1.5 MB at most, and a patch may be larger than what it makes.
BODY_BYTES = 3 << 20
#: Watches have a connection each.
LIMITS = ServerLimits(connections=1000, body_bytes=BODY_BYTES, stream_idle_s=0)


#: The port of the Service `kubernetes`.
SERVICE_PORT = 443
#: AccountTokens of service accounts name it, in each cluster of this kind.
ISSUER = "https://kubernetes.default.svc.cluster.local"
#: Heads of requests: those of clients that are not authenticated yet, such as ones with long tokens.
ADMISSION = AdmissionLimits()


class LocalApi(Value):
    """The built program. `kubeconfig`: the administrator's."""

    url: str
    kubeconfig: str
    store: ObjectStore
    database: Database
    writer: RegistryWriter
    loop: ReconcileLoop
    server: HttpServer
    listening: Sequence[socket.socket]
    tls: CheckedTls
    upkeep: CertificateUpkeep
    authority: Cell[AuthorityPem]
    directory: DirectoryLoop | None
    opened: ExitStack

    def parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs, by name."""
        return {
            "store": self.store.keep_writing(),
            "changes": note_changes(self.store, self.loop),
            "authority": note_authority(self.authority, self.loop),
            "reconcile": self.loop.run(),
            "server": self._serve(),
            "certificates": self.upkeep.run(),
            **({"directory": self.directory.run()} if self.directory is not None else {}),
        }

    async def _serve(self) -> None:
        await prepare_objects(self.store, self.writer)
        async with Supervisor("listening") as tasks:
            for number, listening in enumerate(self.listening):
                serve = serve_connections(listening, self.tls, self.server, ADMISSION)
                tasks.start_root(f"listening-{number}", serve)
            raise await tasks.wait_failed()

    def close(self) -> None:
        """Close the files, after all parts have ended. The copy of the objects is renewed."""
        with contextlib.suppress(StoreError):
            self.database.copy()
        self.opened.close()


def build(options: LocalApiOptions, clock: Clock, begun: BegunStart | None = None) -> LocalApi:
    """Build the program. `begun`: its first steps, if they were taken. Raises LocalApiStartError. Blocks: nothing is served yet."""
    begun = begun or begin(options, clock.wall())
    with begun.opened as opened:
        return _build(options, clock, begun, opened)


def _build(options: LocalApiOptions, clock: Clock, begun: BegunStart, opened: ExitStack) -> LocalApi:
    """Build the program. `opened` closes what was opened, unless it ends well."""
    place, listening = begun.place, [begun.listening]
    url = place.url
    try:
        load_schemas()  # from a file, so not while clients wait; the certificates are made meanwhile
        upkeep = AccessUpkeep(place)
        access_files = upkeep.files(clock.wall(), begun.preparation)
        tokens = AccountTokens(open_token_key(place.folder), ISSUER, url)
        database = Database(f"{options.data_dir}/objects.db")
        opened.callback(database.close)
    except (AccessError, HostError, StoreError) as error:
        raise LocalApiStartError(str(error)) from error
    for note in database.notes:
        log.warning(note)
    listening += _listen_for_pods(options.service_address, opened)
    store = ObjectStore(database, clock)
    registry = ObjectRegistry(store)
    writer = RegistryWriter(registry, store)
    authority, authority_writer = make_cell("authority", access_files.authority)

    def authority_text() -> str:
        return authority.get().pem.decode()

    setup = Setup(authority_text, api_address(options.service_address), clock.monotonic)
    tasks = (*reconcilers(setup), *access_reconcilers(authority, tokens))
    loop = ReconcileLoop(tasks, store, writer, clock)
    clients = Clients(store, tokens)
    upstreams = Upstreams(*access_files.agent_client, access_files.authority_file)
    streams = AgentStreams(store, upstreams, clients)
    tls = server_context(access_files)
    own_tls = _own_tls(access_files)
    contexts = TlsContexts(tls, upstreams.contexts, (own_tls,))
    handler = ObjectsHandler(store, registry, clients, streams.answer, version_body(), lambda: "", clock)
    return LocalApi(
        url,
        str(access_files.admin_kubeconfig),
        store,
        database,
        writer,
        loop,
        HttpServer(handler, limits=LIMITS),
        listening,
        tls,
        CertificateUpkeep(upkeep, access_files, contexts, authority_writer, clock),
        authority,
        _directory(options, url, own_tls, store),
        opened.pop_all(),
    )


def _own_tls(access: AccessFiles) -> ssl.SSLContext:
    """The context with which this program is a client of its own API."""
    tls = ClientTls()
    tls.load_verify_locations(access.authority_file)
    tls.load_cert_chain(*access.own_client)
    return tls


def _directory(options: LocalApiOptions, url: str, tls: ssl.SSLContext, store: ObjectStore) -> DirectoryLoop | None:
    """What applies the files of `--apply-dir`; None without one."""
    if not options.apply_dir:
        return None
    return DirectoryLoop(Folder(options.apply_dir), OwnClient(url, tls), store)


class AgentStreams:
    """Passes requests for logs, exec and the like on to the agent."""

    def __init__(self, store: ObjectStore, upstreams: Upstreams, clients: Clients) -> None:
        self._store = store
        self._upstreams = upstreams
        self._clients = clients

    async def answer(self, asked: AskedRequest) -> Answer:
        """Answer one request. Raises StatusError."""
        target = asked.target
        if asked.user.name == AGENT_CLIENT:
            raise StatusError(403, "Forbidden", "this API is no agent: the Node names an address that leads to it")
        path = StreamPath(target.kind, target.namespace, target.name, target.subresource)
        if needs_create(path):
            self._clients.check_resource(asked.user, "create", target)
        return await answer_stream(
            asked.request,
            asked.connection,
            replace(path, rest=rest_of(asked.request, path)),
            self._store,
            self._upstreams,
        )


def version_body() -> Json:
    """The body of `/version`: the release of Kubernetes that this API is."""
    version = VERSIONS[Release.V1_37]
    major, minor, _ = version.removeprefix("v").split(".")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": major,
        "minor": minor,
        "gitVersion": version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": f"linux/{machine}",
    }


def api_address(service_address: str) -> ApiAddress:
    """Where pods find the API. It has no endpoint if it does not listen for pods."""
    return ApiAddress(service_address or str(SERVICE_NETWORK[1]), service_address, SERVICE_PORT)


def _listen_for_pods(address: str, opened: ExitStack) -> list[socket.socket]:
    """A socket at the address of the Service `kubernetes`. None if this process may not have it: then only the host reaches the API.

    `opened` closes it, and takes the address from the interface.
    """
    if not address:
        return []
    try:
        add_address("lo", address)
        listening = opened.enter_context(listening_socket(address, SERVICE_PORT))
        opened.callback(_remove_own_address, address)
        return [listening]
    except (HostError, LocalApiStartError) as error:
        log.warning("pods cannot reach the API", address=address, error=str(error))
        return []


def _remove_own_address(address: str) -> None:
    try:
        remove_address("lo", address)
    except HostError as error:
        log.warning("the interface lo keeps the address of this API", address=address, error=error)
