"""The server of local pages: what it answers, what it refuses, and that it lives on."""

import contextlib
import http.client
import json
import socket
import statistics
import threading
import time

import pytest

from crossflow.base.errors import CrossflowError
from crossflow.edges.explore.helper import AWAITED
from crossflow.edges.explore.page import assets
from crossflow.edges.explore.server import BODY_LIMIT, CONNECTIONS, TOKEN_HEADER, App, ExploreServer, Requests


def refuse(_):
    raise CrossflowError("there is no such design")


def fail(_):
    raise ZeroDivisionError("division by zero")


LEFT = threading.Event()  # whoever asked has been seen to leave


def until_nobody_waits(body):
    end, awaited = time.monotonic() + body["at_most"], AWAITED.get()
    while awaited():
        if time.monotonic() > end:
            return "somebody waited to the end"
        time.sleep(0.002)
    LEFT.set()
    return None


APP = App(
    title="a <b> page",
    page="scenario.html",
    start=lambda: {"text": "</script><b>", "number": 0.5},
    calls={"echo": lambda body: body, "refuse": refuse, "fail": fail, "work": until_nobody_waits},
)


@pytest.fixture(scope="module")
def server():
    with ExploreServer(APP) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(server, method, path, body=None, **headers):
    """Status, headers and content of an answer; `path` is below the secret unless it begins with a slash."""
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    with contextlib.closing(line):
        line.request(method, path if path.startswith("/") else f"/{server.token}/{path}", body, headers)
        answer = line.getresponse()
        return answer.status, answer.headers, answer.read()


def post(server, name, body, **headers):
    given = {TOKEN_HEADER: server.token, "Content-Type": "application/json", **headers}
    return ask(server, "POST", f"api/{name}", body, **given)


def raw(server, text, *, wait=True):
    """What comes back for bytes that no library would send."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as line:
        with contextlib.suppress(ConnectionError):  # of a server that has read enough
            line.sendall(text)
        found = b""
        with contextlib.suppress(ConnectionError):
            while wait and (piece := line.recv(65536)):
                found += piece
        return found


def alive(server):
    return post(server, "echo", b'{"a": 1}')[2] == b'{"a":1}'


def test_the_page_has_its_data_inside_and_may_load_nothing_from_elsewhere(server):
    status, headers, content = ask(server, "GET", "")
    text = content.decode()
    assert status == 200
    assert "<title>a &lt;b&gt; page" in text
    start = text.partition('id="start">')[2].partition("</script>")[0]
    assert json.loads(start)["text"] == "</script><b>"
    assert "'self'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "http" not in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_every_asset_is_answered_as_it_is(server):
    for name, (kind, content) in assets().items():
        status, headers, found = ask(server, "GET", name)
        assert (status, headers["Content-Type"], found) == (200, kind, content)


def test_calls_answer_with_json(server):
    assert post(server, "echo", b'{"a": [1, null]}')[::2] == (200, b'{"a":[1,null]}')
    assert json.loads(ask(server, "GET", "api/start", **{TOKEN_HEADER: server.token})[2])["number"] == 0.5


def test_an_error_of_a_call_is_a_sentence(server):
    assert post(server, "refuse", b"{}")[::2] == (422, b'{"error":"there is no such design"}')
    assert post(server, "fail", b"{}")[::2] == (500, b'{"error":"ZeroDivisionError: division by zero"}')
    assert alive(server)


def host(name):
    return f"GET /TOKEN/ HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"


def call(headers, body=""):
    return f"POST /TOKEN/api/echo HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n{headers}Connection: close\r\n\r\n{body}"


PROOF = f"{TOKEN_HEADER}: TOKEN\r\nContent-Type: application/json\r\n"
HOSTILE = {
    "another host": (host("example.com"), 403),
    "another port": (host("127.0.0.1:1"), 403),
    "a host that begins alike": (host("127.0.0.1:PORT.example.com"), 403),
    "two hosts": (host("127.0.0.1:PORT\r\nHost: example.com"), 403),
    "no host": ("GET /TOKEN/ HTTP/1.1\r\nConnection: close\r\n\r\n", 403),
    "another origin": (host("127.0.0.1:PORT\r\nOrigin: http://example.com"), 403),
    "an opaque origin": (host("127.0.0.1:PORT\r\nOrigin: null"), 403),
    "no secret": ("GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 403),
    "a wrong secret": ("GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 403),
    "the beginning of the secret": ("GET /TOK/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 403),
    "a path upwards": ("GET /TOKEN/../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 404),
    "a coded path upwards": ("GET /TOKEN/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 404),
    "an absolute path": ("GET /TOKEN//etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 404),
    "a folder": ("GET /TOKEN/vendor/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 404),
    "a module of Python": ("GET /TOKEN/server.py HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n", 404),
    "a call without proof": (call("Content-Type: application/json\r\nContent-Length: 2\r\n", "{}"), 403),
    "a form of another page": (call(f"{TOKEN_HEADER}: TOKEN\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n", "{}"), 415),
    "100 MB announced": (call(f"{PROOF}Content-Length: 104857600\r\n", "{}"), 413),
    "a length without end": (call(f"{PROOF}Content-Length: {'9' * 5000}\r\n", "{}"), 413),
    "a negative length": (call(f"{PROOF}Content-Length: -1\r\n", "{}"), 400),
    "two lengths": (call(f"{PROOF}Content-Length: 2\r\nContent-Length: 3\r\n", "{}"), 411),
    "no length": (call(PROOF), 411),
    "chunks": (call(f"{PROOF}Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), 411),
    "no JSON": (call(f"{PROOF}Content-Length: 5\r\n", "{'a':"), 400),
    "no object": (call(f"{PROOF}Content-Length: 2\r\n", "[]"), 400),
    "no number": (call(f"{PROOF}Content-Length: 8\r\n", '{"a":NaN'), 400),
    "no text": (call(f"{PROOF}Content-Length: 3\r\n", "\xff\xfe\x00"), 400),
    "deep JSON": (call(f"{PROOF}Content-Length: 100000\r\n", "[" * 100_000), 400),
    "no such call": (call(f"{PROOF}Content-Length: 2\r\n", "{}").replace("/echo", "/serve"), 404),
    "HEAD": (host("127.0.0.1:PORT").replace("GET", "HEAD"), 501),
    "PUT": (host("127.0.0.1:PORT").replace("GET", "PUT"), 501),
    "DELETE": (host("127.0.0.1:PORT").replace("GET", "DELETE"), 501),
    "OPTIONS": (host("127.0.0.1:PORT").replace("GET", "OPTIONS"), 501),
    "another protocol": ("GET /TOKEN/ HTTP/9.9\r\nHost: 127.0.0.1:PORT\r\n\r\n", 505),
    "a long address": (f"GET /{'a' * 70_000} HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 414),
    "a long header": (f"GET /TOKEN/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nX: {'a' * 70_000}\r\n\r\n", 431),
    "many headers": ("GET /TOKEN/ HTTP/1.1\r\n" + "X: a\r\n" * 200 + "\r\n", 431),
    "no words": ("\x16\x03\x01\x02\r\n\r\n", 400),
}


@pytest.mark.parametrize(("text", "status"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_requests_are_refused(server, text, status):
    filled = text.replace("TOKEN", server.token).replace("/TOK/", f"/{server.token[:-1]}/")
    found = raw(server, filled.replace("PORT", str(server.server_port)).encode("latin-1"))
    assert found.split(b" ", 2)[1] == str(status).encode(), found[:200]
    assert b"Traceback" not in found
    assert b"root:" not in found
    assert alive(server)


def test_a_body_of_the_limit_is_read(server):
    body = json.dumps({"a": "x" * (BODY_LIMIT - 100)}).encode()
    assert post(server, "echo", body)[0] == 200


def test_slow_clients_hold_back_nobody_and_are_left_alone(server, monkeypatch):
    monkeypatch.setattr(Requests, "timeout", 0.2)
    text = call(f"{PROOF}Content-Length: 50\r\n", "{").replace("TOKEN", server.token).replace("PORT", str(server.server_port))
    slow = [socket.create_connection(("127.0.0.1", server.server_port), timeout=5) for _ in range(20)]
    for line in slow:
        line.sendall(text.encode())
    assert alive(server)
    for line in slow:
        with contextlib.suppress(ConnectionError):
            line.recv(10)
        line.close()
    assert alive(server)


SLOW = {  # what slow clients send at first, and whether they send a byte now and then
    "no line": ("", False),
    "half a line": ("GET /TOK", True),
    "half of the headers": ("GET /TOKEN/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nX-A: ", True),
    "no body": (call(f"{PROOF}Content-Length: 1000000\r\n"), True),
    "answers that are not taken": ("GET /TOKEN/vendor/three.js HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n" * 40, False),
}

LARGEST = max(assets(), key=lambda name: len(assets()[name][1]))


def slow_client(server, text):
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.settimeout(5)
    line.connect(("127.0.0.1", server.server_port))
    with contextlib.suppress(ConnectionError):  # of one that was left alone already
        line.sendall(text.replace("TOKEN", server.token).replace("PORT", str(server.server_port)).encode())
    return line


def is_closed(line):
    """Whether the server has left a client alone; what it has sent before is read."""
    line.settimeout(2)
    try:
        while line.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_hundreds_of_slow_clients_hold_back_nobody_and_are_closed(server, monkeypatch):
    monkeypatch.setattr(Requests, "timeout", 0.6)
    before = threading.active_count()
    texts = [(text.replace("vendor/three.js", LARGEST), drips) for text, drips in SLOW.values()]
    lines = [(slow_client(server, text), drips) for text, drips in texts * 40]
    took, threads = [], []
    for _ in range(10):
        begun = time.perf_counter()
        assert alive(server)
        took.append(time.perf_counter() - begun)
        threads.append(threading.active_count() - before)
        for line, drips in lines if len(took) < 8 else ():
            with contextlib.suppress(OSError):
                line.sendall(b"a" if drips else b"")
        time.sleep(0.12)
    assert statistics.median(took) < Requests.timeout / 2  # before slow ones are closed
    assert max(threads) <= CONNECTIONS + 8  # of those that are just left alone
    time.sleep(0.6)  # longer than any may take, however many bytes it sends
    assert [texts[number % len(texts)][0][:20] for number, (line, _) in enumerate(lines) if not is_closed(line)] == []
    assert threading.active_count() <= before + 1
    assert not server.clients
    for line, _ in lines:
        line.close()
    assert alive(server)


def test_nothing_of_a_client_that_takes_no_answer_stays_open(server, monkeypatch):
    monkeypatch.setattr(Requests, "timeout", 0.3)
    left, leave = [], server.leave
    monkeypatch.setattr(server, "leave", lambda client: (left.append(client), leave(client)))
    line = slow_client(server, f"GET /TOKEN/{LARGEST} HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n" * 40)
    with contextlib.closing(line):
        until = time.monotonic() + 10
        while time.monotonic() < until and not (left and left[0].connection.fileno() == -1):
            time.sleep(0.02)
        assert [client.connection.fileno() for client in left] == [-1]


def test_a_head_without_end_is_not_kept(server):
    text = f"GET /{server.token}/ HTTP/1.1\r\n" + f"X: {'a' * 60_000}\r\n" * 3
    assert raw(server, text.encode()).split(b" ", 2)[1] == b"431"
    line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    with contextlib.closing(line):
        for _ in range(4):  # the limit is of a request, not of a connection
            line.request("GET", f"/{server.token}/kit.js", headers={"X": "a" * 50_000})
            assert line.getresponse().read() == assets()["kit.js"][1]


def test_a_client_that_leaves_in_the_middle_is_no_news(server):
    said = []
    server.log = said.append
    raw(server, b"POST /", wait=False)
    raw(server, f"GET /{server.token}/kit.js HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode(), wait=False)
    assert alive(server)
    assert said == []


def test_a_call_knows_whether_its_client_still_waits(server):
    assert post(server, "work", b'{"at_most": 0.02}')[2] == b'"somebody waited to the end"'
    assert not LEFT.is_set()
    text = call(f"{PROOF}Content-Length: 14\r\n", '{"at_most": 9}').replace("/echo", "/work")
    raw(server, text.replace("TOKEN", server.token).replace("PORT", str(server.server_port)).encode(), wait=False)
    assert LEFT.wait(5)


def test_a_port_in_use_is_told_with_a_cure(server):
    with pytest.raises(
        CrossflowError, match=f"port {server.server_port} of 127.0.0.1 cannot be used: .*without --port a free one is taken"
    ):
        ExploreServer(APP, server.server_port)
