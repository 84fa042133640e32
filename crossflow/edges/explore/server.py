"""A server of one page for the person at this machine: loopback only, a secret address, nothing of a request ever names a file."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any

from crossflow.base.errors import CrossflowError
from crossflow.base.platforms import has_display
from crossflow.edges.explore.helper import AWAITED

HOST = "127.0.0.1"
BODY_LIMIT = 2**20  # bytes of a request
HEAD_LIMIT = 2**17  # bytes of its first line and headers together
PATIENCE = 10.0  # a client that has not sent a whole request, or not taken an answer, for so long is left alone [s]
CONNECTIONS = 64  # at once, each with a thread; a browser opens six
TOKEN_HEADER = "X-Crossflow-Token"  # what proves that a request comes from the page
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip
JSON = "application/json; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class App:
    """What a server shows.

    Attributes
    ----------
    title : of the page.
    page : name of the asset that is the page, an HTML file.
    start : data that the page begins with; it stands in the page itself, and answers ``GET api/start``.
    calls : what the page may ask, by name: ``POST api/NAME`` with a JSON object as body, answered with JSON. A `CrossflowError` is
        answered with its sentence and status 422.
    offline : further data for the page as a file (`crossflow.edges.explore.page.exported`), where nothing can be called.
    opened : called when the server shows the page; a page as a file has none.
    close : called when the server ends.
    """

    title: str
    page: str
    start: Callable[[], Mapping[str, Any]]
    calls: Mapping[str, Callable[[Mapping[str, Any]], Any]]
    offline: Callable[[], Mapping[str, Any]] = dict
    opened: Callable[[], Any] = lambda: None
    close: Callable[[], Any] = lambda: None


class RefusedError(Exception):
    """A request that is not answered: a status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        self.status = status
        super().__init__(sentence)


class ExploreServer(ThreadingHTTPServer):
    """Server of an app at `url`, which holds the secret."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, app: App, port: int = 0, log: Callable[[str], None] = lambda _: None) -> None:
        from crossflow.edges.explore.page import assets

        self.app, self.log, self.token = app, log, secrets.token_urlsafe(24)
        self.assets = assets()
        self.clients: set[Requests] = set()
        self._counting = threading.Lock()
        try:
            super().__init__((HOST, port), Requests)
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or error
            raise CrossflowError(f"port {port} of {HOST} cannot be used: {said}; without --port a free one is taken") from None
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def enter(self, client: Requests) -> None:
        """Take a client in. Where there are too many, the one that has let the server wait longest is left alone."""
        with self._counting:
            if len(self.clients) >= CONNECTIONS and (waiting := self._waiting()):
                self._leave(min(waiting, key=lambda one: (one.answered, waiting[one])))
            self.clients.add(client)

    def leave(self, client: Requests) -> None:
        """A client has gone."""
        with self._counting:
            self.clients.discard(client)

    def service_actions(self) -> None:
        """Leave those alone, at every turn of the server, that have let it wait for too long, however many bytes they sent meanwhile."""
        end = time.monotonic() - (Requests.timeout or PATIENCE)
        with self._counting:
            for client in [one for one, since in self._waiting().items() if since < end]:
                self._leave(client)

    def _waiting(self) -> dict[Requests, float]:
        """Clients for which the server waits, each with since when; their threads change that meanwhile."""
        return {one: since for one in self.clients if (since := one.since) is not None}

    def _leave(self, client: Requests) -> None:
        """Wake up the thread of a client, which ends."""
        self.clients.discard(client)
        with contextlib.suppress(OSError):  # of a client that has gone
            client.connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: Any) -> None:
        """Clients that leave in the middle of an answer are no news."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            self.log(f"a request failed: {type(error).__name__}: {error}")


class BoundedLines:
    """What a client sends, of which no more is kept than a request may have."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self.left = stream, HEAD_LIMIT

    def readline(self, most: int) -> bytes:
        """A line of the head of a request; LineTooLong where the head is too long."""
        line = self._stream.readline(most)
        self.left -= len(line)
        if self.left < 0:
            raise LineTooLong("head")
        return line

    def read(self, most: int) -> bytes:
        """So many bytes of its body, fewer where the client leaves."""
        return self._stream.read(most)

    def close(self) -> None:
        """Read no more."""
        self._stream.close()


class Requests(BaseHTTPRequestHandler):
    """Requests of one connection."""

    server: ExploreServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "crossflow", ""
    timeout = PATIENCE
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together

    since: float | None = None  # when the server began to wait for this client, by its clock; None while the client waits
    answered = False  # whether it has sent a request that was answered with what it asked for

    def setup(self) -> None:
        """Begin, within the number of clients and the bytes that there may be."""
        super().setup()
        self.lines = BoundedLines(self.rfile)
        self.rfile = self.lines  # type: ignore[assignment] # which has all of it that is used
        self.since = time.monotonic()
        self.server.enter(self)

    def finish(self) -> None:
        """End, and make room for another client."""
        try:
            with contextlib.suppress(ConnectionError, TimeoutError, ValueError):  # of a client that takes no answer
                super().finish()
        finally:
            self.lines.close()  # which is left open where what is written cannot be sent, and the connection with it
            self.server.leave(self)

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it."""
        self.since, self.lines.left = time.monotonic(), HEAD_LIMIT
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer with the page, one of its assets, or the data that it begins with."""
        with self._refusing():
            name = self._name()
            if name == "api/start":
                self._proven()
                self._answer(HTTPStatus.OK, JSON, encoded(self._start()))
            elif name == "":
                self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self._page())
            elif name in self.server.assets:
                kind, content = self.server.assets[name]
                self._answer(HTTPStatus.OK, kind, content)
            else:
                raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing of this name")

    def do_POST(self) -> None:
        """Answer a call."""
        with self._refusing():
            name = self._name()
            self._proven()
            call = self.server.app.calls.get(name.removeprefix("api/")) if name.startswith("api/") else None
            if call is None:
                raise RefusedError(HTTPStatus.NOT_FOUND, "there is no such call")
            body = self._body()
            AWAITED.set(self._awaited)  # of this thread, which serves one connection
            try:
                answer = encoded(call(body))
            except CrossflowError as error:
                raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, error.said) from None
            self._answer(HTTPStatus.OK, JSON, answer)

    # -------------------------------------------------------------------------------------- what is asked

    def _name(self) -> str:
        """What a request asks for below the secret; RefusedError unless it comes to this server and knows the secret."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise RefusedError(HTTPStatus.FORBIDDEN, "this server answers only under its own address")
        origin = self.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in self.server.hosts:
            raise RefusedError(HTTPStatus.FORBIDDEN, "this server answers only its own page")
        secret, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        if not (slash and _same(secret, self.server.token)):
            raise RefusedError(HTTPStatus.FORBIDDEN, "the address lacks the secret that crossflow printed")
        return name

    def _proven(self) -> None:
        """RefusedError unless the request comes from the page, which alone can set a header."""
        if not _same(self.headers.get(TOKEN_HEADER, ""), self.server.token):
            raise RefusedError(HTTPStatus.FORBIDDEN, f"the header {TOKEN_HEADER} is missing or wrong")

    def _body(self) -> dict[str, Any]:
        """The JSON object of a request."""
        lengths = self.headers.get_all("Content-Length") or []
        if "Transfer-Encoding" in self.headers or len(lengths) != 1:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "a call needs one Content-Length")
        if not (lengths[0].isascii() and lengths[0].isdecimal()):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "Content-Length is no number")
        if len(lengths[0]) > 9 or int(lengths[0]) > BODY_LIMIT:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a call has at most {BODY_LIMIT} bytes")
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a call is application/json")
        self.since = time.monotonic()
        content = self.rfile.read(int(lengths[0]))
        self.since, self.unread = None, False
        try:
            body = json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body of the call is no JSON") from None
        if not isinstance(body, dict):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body of a call is a JSON object")
        return body

    def _awaited(self) -> bool:
        """Whether the client is still there: a page that is closed, or has no use for an answer any more, ends the connection."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return not readable or self.connection.recv(1, socket.MSG_PEEK) != b""
        except (OSError, ValueError):
            return False

    # -------------------------------------------------------------------------------------- what is answered

    def _start(self) -> dict[str, Any]:
        from crossflow.edges.explore.page import common

        self.server.app.opened()
        return {**common(self.server.app), **self.server.app.start()}

    def _page(self) -> bytes:
        from crossflow.edges.explore.page import with_start

        return with_start(self.server.app, self.server.assets[self.server.app.page][1].decode(), self._start()).encode()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn what goes wrong into an answer; the server lives on."""
        self.since, self.unread = None, self.command != "GET"
        try:
            yield
        except RefusedError as refusal:
            self._refuse(refusal.status, str(refusal))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            self.server.log(f"{self.command} failed: {type(error).__name__}: {error}")
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        if self.unread:  # what a body leaves on the line is no request
            self.close_connection = True
        self._answer(status, JSON, encoded({"error": sentence}))

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.since, self.answered = time.monotonic(), self.answered or status == HTTPStatus.OK
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no HTTP that this server speaks, in JSON as all else."""
        del explain
        self.close_connection = True
        self.command = getattr(self, "command", None) or "GET"
        if not hasattr(self, "request_version") or self.request_version == "HTTP/0.9":
            self.request_version = self.protocol_version
        status = HTTPStatus(code)
        self._answer(status, JSON, encoded({"error": message or status.phrase}))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name that the base class gives it)
        """Keep the terminal quiet."""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _no_number(name: str) -> float:
    raise ValueError(name)


def encoded(data: Any) -> bytes:
    """Data as JSON, in which numbers that are not finite are null."""
    import orjson

    return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def serve(
    app: App,
    *,
    port: int = 0,
    announce: Callable[[str], None],
    open_browser: bool = True,
    log: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve an app until the process is interrupted.

    Parameters
    ----------
    app : what to show.
    port : port of 127.0.0.1 to listen at, 0 for a free one.
    announce : called with the address as soon as the server listens.
    open_browser : open the address in the person's browser, where there is a display.
    log : called with a sentence where a request fails.

    Raises
    ------
    CrossflowError
        When the port cannot be used.
    """
    import gc

    with ExploreServer(app, port, log) as server:
        gc.collect()
        gc.freeze()  # what is read by now stays: collections that go through it would be felt in a drag
        announce(server.url)
        if open_browser and has_display(os.environ):
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever(poll_interval=0.2)
        finally:
            app.close()
