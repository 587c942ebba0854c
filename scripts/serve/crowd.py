"""The part `crowd` of scripts/check_serve.sh: thousands of requests, and clients that go away, do not read or do not end."""

import concurrent.futures
import http.client
import json
import re
import socket
import statistics
import struct
import time

N_REQUESTS = 10_000
N_KILLED = 200
ROUNDS = 5
ENDLESS = {"prompt": "The", "max_tokens": 30_000, "stream": True}
KINDS = [
    ("/v1/completions", {"prompt": "The", "max_tokens": 3}, 200),
    ("/v1/completions", {"prompt": "One day", "max_tokens": 5, "stream": True, "n": 2}, 200),
    ("/v1/completions", {"prompt": "She said", "max_tokens": 0, "echo": True, "logprobs": 3}, 200),
    ("/v1/inspect", {"prompt": "The", "attention": True, "ablate": [[0, 0]]}, 200),
    ("/tokenize", {"content": "Once upon a time"}, 200),
    ("/v1/completions", {"prompt": "The", "temperature": -1}, 400),
    ("/v1/completions", {"model": "other", "prompt": "The"}, 404),
    ("/nowhere", {}, 404),
]


def check_crowd(run, start):
    with start(run) as server:
        host, port = server.url.removeprefix("http://").split(":")
        address = (host, int(port))

        def ask(path, body):
            connection = http.client.HTTPConnection(*address, timeout=60)
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            connection.close()
            return response.status, text

        def raw(body, size=None):
            """The bytes of a request, sent by a client that does not read; the first `size` of them."""
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(address)
            text = json.dumps(body)
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
            client.sendall((head + text).encode()[:size])
            return client

        def texts():
            """How many texts are written, and how many wait."""
            connection = http.client.HTTPConnection(*address, timeout=60)
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
            connection.close()
            return [int(re.search(rf"^tinderbox_{name}{{.*}} (\d+)", page, re.M)[1]) for name in ("busy_places", "waiting_texts")]

        def wait_until(is_so, limit_s):
            since = time.perf_counter()
            while not is_so():
                assert time.perf_counter() - since < limit_s, texts()
                time.sleep(0.002)
            return time.perf_counter() - since

        def memory_mib():
            status = open(f"/proc/{server.process.pid}/status").read()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

        def many(n):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                kinds = [KINDS[i % len(KINDS)] for i in range(n)]
                for (path, body, status), (found, text) in zip(kinds, pool.map(lambda kind: ask(kind[0], kind[1]), kinds)):
                    assert found == status, (path, body, found, text)
                    assert status == 200 or set(json.loads(text)["error"]) == {"message", "type", "param", "code"}, text

        many(N_REQUESTS // 5)
        early = memory_mib()
        many(N_REQUESTS - N_REQUESTS // 5)
        late = memory_mib()
        print(f"crowd: {N_REQUESTS} requests; {early:.1f} MiB after a fifth of them, {late:.1f} MiB after all")
        assert late < 1.05 * early + 2, (early, late)

        times = []
        for _ in range(ROUNDS):
            clients = [raw(ENDLESS) for _ in range(N_KILLED)]
            wait_until(lambda: texts() == [16, N_KILLED - 16], 30)
            for client in clients:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # as if it were killed
                client.close()
            times.append(1000 * wait_until(lambda: texts() == [0, 0], 30))
        killed = memory_mib()
        print(f"crowd: {N_KILLED} clients killed: all places free after {statistics.median(times):.0f} ms, at most {max(times):.0f}")
        print(f"crowd: {killed:.1f} MiB after {ROUNDS} rounds of that")
        assert max(times) < 100, times

        slow = [raw(ENDLESS) for _ in range(64)]
        half = [raw(ENDLESS, size) for size in (0, 20, 60, 100) for _ in range(25)]
        time.sleep(1)
        since = time.perf_counter()
        assert ask("/tokenize", {"content": "The"})[0] == 200
        print(f"crowd: beside 64 clients that do not read and 100 half requests, another is answered in "
              f"{1000 * (time.perf_counter() - since):.0f} ms")
        wait_until(lambda: texts() == [0, 0], 180)
        print(f"crowd: the places of those that do not read are free after {time.perf_counter() - since:.0f} s")
        for client in half:
            client.settimeout(90)
            while client.recv(4096):
                pass  # 408, or nothing, and then the end
        assert ask("/v1/completions", {"prompt": "The", "max_tokens": 3})[0] == 200
        [client.close() for client in slow]
        print(f"crowd: half requests were ended after {time.perf_counter() - since:.0f} s; {memory_mib():.1f} MiB")
