"""`bnce serve` as a process: many clients at once, bad ones among them, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from command import Command, Refused
from run_files import write_mixture

from bnce import Model, load
from bnce.cli.serve import MAX_CONNECTIONS
from bnce.scoring.results import LN_10
from bnce.serve.guard import MAX_BODY_BYTES, REQUEST_SECONDS

from .server_process import ServerProcess, serving

NUM_CLIENTS = 200
REQUESTS_EACH = 4
# The most that requests may add to what the server holds when it is ready, and the limit in all.
MEMORY_GROWTH_BYTES = 128 * 2**20
MEMORY_LIMIT_BYTES = 768 * 2**20


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[ServerProcess]:
    with serving(trained) as running:
        yield running


@pytest.fixture(scope="module")
def model(trained: Path) -> Model:
    return load(trained)


class Asked:
    """A request, and what the library says to it."""

    def __init__(self, model: Model, number: int) -> None:
        generator = random.Random(number)
        words = [*model.vocabulary.words[2:], "xyzzy"]
        self.texts = [" ".join(generator.choices(words, k=generator.randint(0, 12))) for _ in range(3)]
        self.kind = ("unnormalised", "normalised", "exact", "next", "rescore")[number % 5]
        self.path, self.body = "/score", {"sentences": self.texts, "mode": self.kind}
        if self.kind == "exact":
            self.body = {"sentences": self.texts, "exact": True}
        elif self.kind == "next":
            self.path, self.body = "/next", {"prompt": self.texts[0], "k": 5, "mode": "normalised"}
        elif self.kind == "rescore":
            hypotheses = [{"text": text, "am": float(place)} for place, text in enumerate(self.texts)]
            self.path, self.body = "/rescore", {"utterances": [{"id": str(number), "hypotheses": hypotheses}]}
        self.expected = self._numbers_of_library(model)

    def numbers(self, answer: dict[str, Any]) -> list[float]:
        """Take the numbers out of an answer."""
        if self.kind == "next":
            return [word["log10_prob"] for word in answer["next"]]
        if self.kind == "rescore":
            return [hypothesis["new_lm"] for hypothesis in answer["utterances"][0]["hypotheses"]]
        keys = ["log10_probs", "exact_log10_probs"] if self.kind == "exact" else ["log10_probs"]
        return [value for key in keys for sentence in answer["sentences"] for value in sentence[key]]

    def _numbers_of_library(self, model: Model) -> list[float]:
        if self.kind == "next":
            return [word.log_prob / LN_10 for word in model.next_words(self.texts[0], 5, mode="normalised")]
        if self.kind == "rescore":
            words = [model.words(text) for text in self.texts]
            return [float(found.log_probs.sum()) for found in model.score_words(words, share=True)]
        modes = {
            "unnormalised": ["unnormalised"],
            "normalised": ["normalised"],
            "exact": ["unnormalised", "normalised"],
        }[self.kind]
        scored = [sentence for mode in modes for sentence in model.score(self.texts, mode=mode)]
        return [float(value) for sentence in scored for value in sentence.log_probs / LN_10]


BAD_BODIES = [
    (b'{"sentences": ["ba"', 400),
    (b"\x00\xff\xfe\x80" * 300, 400),
    (b'{"sentences": [7]}', 422),
    (b'{"sentences": ["' + b"ba " * 2**20 + b'"]}', 413),
    (json.dumps({"sentences": ["ba"] * 5000}).encode(), 413),
]
BAD_BYTES = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"hello there\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
]
# Bodies that never come; the server has thirty seconds of patience, its other clients none.
SLOW_STARTS = [
    b"POST /sco",
    b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{",
    b'POST /score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"sen\r\n',
]


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """Read one answer: its status, and what its JSON says."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split()[1]), json.loads(await reader.readexactly(int(length.split(b":")[1])))


def written(path: str, body: bytes) -> bytes:
    """Write a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def post(connection: Connection, path: str, body: bytes) -> tuple[int, Any]:
    """Send one request and read its answer."""
    connection[1].write(written(path, body))
    return await read_answer(connection[0])


def test_many_clients_and_bad_ones_among_them(server: ServerProcess, model: Model) -> None:
    questions = [Asked(model, number) for number in range(50)]
    before = server.memory_bytes()

    async def client(number: int) -> int:
        connection = await asyncio.open_connection("127.0.0.1", server.port)
        for turn in range(REQUESTS_EACH):
            asked = questions[(number * 7 + turn) % len(questions)]
            status, answer = await post(connection, asked.path, json.dumps(asked.body).encode())
            assert status == 200, answer
            np.testing.assert_allclose(asked.numbers(answer), asked.expected, atol=2e-5)
        connection[1].close()
        return REQUESTS_EACH

    async def bad_client(content: bytes, expected: int) -> None:
        for _ in range(3):
            connection = await asyncio.open_connection("127.0.0.1", server.port)
            status, answer = await post(connection, "/score", content)
            assert (status, list(answer)) == (expected, ["detail"])
            connection[1].close()

    async def raw_client(data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(data)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400 ")
        writer.close()

    async def everybody() -> int:
        stalled = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(15)]
        for number, (_, writer) in enumerate(stalled):
            writer.write(SLOW_STARTS[number % len(SLOW_STARTS)])
        good = [client(number) for number in range(NUM_CLIENTS)]
        bad = [bad_client(*pair) for pair in BAD_BODIES for _ in range(2)]
        bad += [raw_client(data) for data in BAD_BYTES for _ in range(3)]
        answered, _ = await asyncio.gather(asyncio.gather(*good), asyncio.gather(*bad))
        for _, writer in stalled:
            writer.close()
        return sum(answered)

    assert asyncio.run(everybody()) == NUM_CLIENTS * REQUESTS_EACH
    peak = server.memory_bytes("VmHWM")
    assert peak - before < MEMORY_GROWTH_BYTES
    assert peak < MEMORY_LIMIT_BYTES
    metrics = httpx.get(f"{server.url}/metrics").text
    samples = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    counted = {name: float(value) for name, value in samples.items() if name.startswith("bnce_requests_total")}
    assert sum(value for name, value in counted.items() if 'status="200"' in name) == NUM_CLIENTS * REQUESTS_EACH
    assert not [name for name in counted if 'status="5' in name]
    # Requests did go through the model together.
    assert float(samples["bnce_batch_questions_sum"]) > 2 * float(samples["bnce_batch_questions_count"])
    assert samples["bnce_waiting_requests"] == "0.0"


def test_it_finishes_what_runs_and_refuses_what_is_new(trained: Path, model: Model) -> None:
    # So much that it is with the model, in several batches, when the signal comes.
    texts = [" ".join(["ba be bi"] * 60)] * 20
    with serving(trained) as server:
        answers: list[httpx.Response] = []
        asked = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{server.url}/score", json={"sentences": texts, "mode": "normalised"}, timeout=60)
            )
        )
        asked.start()
        wait_until(lambda: "bnce_waiting_requests 1.0" in httpx.get(f"{server.url}/metrics").text or bool(answers))
        status, errors = server.stop()
        asked.join(30)
        (answer,) = answers
        assert answer.status_code == 200
        found = [sentence["log10_prob"] for sentence in answer.json()["sentences"]]
        assert found == pytest.approx(
            [scored.log_prob / LN_10 for scored in model.score(texts, mode="normalised")], rel=1e-5
        )
        assert status == 0
        assert errors == f"Serving {trained} at {server.url} on cpu (Ctrl-C to stop)\n"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")


def test_the_documented_requests_are_answered(server: ServerProcess) -> None:
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).replace("\\\n", "")
    commands = [shlex.split(f"curl {command}") for command in blocks.split("curl ")[1:]]
    assert len(commands) == 3
    for command in commands:
        url = next(word for word in command if word.startswith("http://127.0.0.1:8000/"))
        url = url.replace("http://127.0.0.1:8000", server.url)
        if "-d" in command:
            kind = {"content-type": "application/json"}
            answer = httpx.post(url, content=command[command.index("-d") + 1], headers=kind)
        else:
            answer = httpx.get(url)
        assert answer.status_code == 200, answer.text


def test_the_manual_says_how_to_keep_others_out(bnce: Command, tmp_path: Path) -> None:
    """A token of ours; TLS and rates per client by a proxy, with limits that are the server's own."""
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page))
    known = bnce("serve", "--help").stdout
    assert {"--token-file", "--allowed-host"} <= options
    assert [option for option in sorted(options) if option not in known] == []
    (proxy,) = re.findall(r"```nginx\n(.*?)```", page, flags=re.DOTALL)
    for directive in ("listen 443 ssl;", "ssl_certificate ", "limit_req ", "proxy_pass http://127.0.0.1:8000;"):
        assert directive in proxy
    patience = re.search(r"proxy_read_timeout (\d+)s;", proxy)
    assert patience is not None
    assert int(patience[1]) > REQUEST_SECONDS
    assert f"client_max_body_size {MAX_BODY_BYTES // 1024}k;" in proxy
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=lm.example.org"]
    subprocess.run([*certificate, "-keyout", tmp_path / "privkey.pem", "-out", tmp_path / "fullchain.pem"], check=True)
    local = proxy.replace("/etc/letsencrypt/live/lm.example.org", str(tmp_path))
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/nginx.pid;\nerror_log {tmp_path}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{local}}}\n",
        encoding="utf-8",
    )
    checked = subprocess.run([nginx, "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_connection_goes_on_after_head(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url) as client:
        head = client.head("/health")
        assert (head.status_code, head.content) == (200, b"")
        answer = client.get("/health")
        assert answer.json()["status"] == "ok"
        assert head.headers["content-length"] == answer.headers["content-length"]


def test_other_machines_have_a_warning_and_connections_a_bound(trained: Path, tmp_path: Path) -> None:
    """Of a server for a mixture, which is served as a run is."""
    mixture = tmp_path / "mix.toml"
    write_mixture(mixture, [trained, trained], [0.25, 0.75])
    with serving(mixture, "--host", "0.0.0.0") as server:
        here = f"http://127.0.0.1:{server.port}"
        (found,) = httpx.post(f"{here}/score", json={"sentences": ["ba be bi ."]}).json()["sentences"]
        (expected,) = load(mixture).score(["ba be bi ."])
        assert found["log10_prob"] == pytest.approx(expected.log_prob / LN_10, rel=1e-5)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_CONNECTIONS)]
        wait_until(lambda: httpx.get(f"{here}/health").status_code == 503)
        for connection in idle:
            connection.close()
        wait_until(lambda: httpx.get(f"{here}/health").status_code == 200)
        status, errors = server.stop()
    assert status == 0
    assert "Warning: 0.0.0.0 can be reached from other machines. Everyone who can reach it can use the model" in errors


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--token-file", __file__], "characters: give 16 to 512 letters, digits and marks without blanks"),
        (["--token-file", "/no/such"], "The token file '/no/such' cannot be read (No such file or directory)"),
        (["--allowed-host", "https://a.example"], "--allowed-host is 'https://a.example': give a name without scheme"),
        (["--host", "no such host"], "Cannot listen on no such host:0"),
        (["--device", "abacus"], "Unknown device 'abacus'"),
    ],
)
def test_refusals(refused: Refused, trained: Path, options: list[str], told: str) -> None:
    assert told in refused("serve", trained, "--port", 0, *options)


def test_an_empty_token_is_refused(refused: Refused, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a script whose secret is missing, which must not start a server for everyone."""
    monkeypatch.setenv("BNCE_TOKEN", "")
    # Without a device, no server starts where the token passes.
    told = refused("serve", trained, "--port", 0, "--device", "abacus")
    assert told.startswith("bnce: The token has 0 characters: give 16 to 512")


def test_what_is_not_there(refused: Refused, tmp_path: Path) -> None:
    assert "is not a run directory" in refused("serve", tmp_path, "--port", 0)
