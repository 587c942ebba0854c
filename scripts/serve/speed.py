"""The part `speed` of scripts/check_serve.sh: 16 clients of `tinderbox serve`, beside `generate` and llama.cpp."""

import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

N_CLIENTS = 16
N_TOKENS = 64
ROUNDS = 3
TEXT = pathlib.Path("data/stories.txt").read_text()


def post(url, body):
    body = json.dumps(body).encode()
    try:
        return urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}))
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.read().decode()}") from error


def complete(url, prompt, n, **settings):
    """Tokens written, and the seconds that it took."""
    began = time.perf_counter()
    with post(url, {"prompt": prompt, "max_tokens": n, "temperature": 1, **settings}) as answer:
        usage = json.load(answer)["usage"]
    return usage["completion_tokens"], time.perf_counter() - began


def first_token_s(url, prompt):
    """Seconds until some text comes."""
    began = time.perf_counter()
    with post(url, {"prompt": prompt, "max_tokens": N_TOKENS, "temperature": 1, "stream": True}) as answer:
        first = None
        for line in answer:
            if first is None and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("text"):
                first = time.perf_counter() - began
    return first


def at_once(task, arguments):
    with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as pool:
        return list(pool.map(lambda argument: task(*argument), arguments))


def prompts(round_idx, length=150):
    """Prompts that no other round has."""
    begins = [(round_idx * N_CLIENTS + i) * 9973 % (len(TEXT) - length) for i in range(N_CLIENTS)]
    return [TEXT[begin : begin + length] for begin in begins]


def tokens_per_s(url, texts, **settings):
    began = time.perf_counter()
    written = at_once(lambda text, seed: complete(url, text, N_TOKENS, seed=seed, **settings), list(zip(texts, range(N_CLIENTS))))
    return sum(n for n, _ in written) / (time.perf_counter() - began)


def generate_tokens_per_s(program, run, prompt):
    """Of `generate`, without its start: the difference of many tokens and one, times by the clock."""

    def seconds(n):
        command = [program, "generate", run, "--prompt", prompt, "--temperature", "1", "--num-samples", str(N_CLIENTS)]
        began = time.perf_counter()
        subprocess.run([*command, "--max-new-tokens", str(n)], check=True, capture_output=True)
        return time.perf_counter() - began

    return N_CLIENTS * (N_TOKENS - 1) / (seconds(N_TOKENS) - seconds(1))


def check_speed(program, run, work, server):
    """`server(run)` is a running server, for a `with` block."""
    gguf = work / "speed.gguf"
    subprocess.run([program, "export", run, "--to", "gguf", "--dtype", "f32", "--output", gguf, "--overwrite"], check=True)
    serve_llama = pathlib.Path(__file__).parent.parent / "interop" / "llama_server.py"
    llama = subprocess.Popen(
        [sys.executable, serve_llama, gguf, "1024", "2", str(N_CLIENTS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    figures = {}

    def keep(name, value):
        figures.setdefault(name, []).append(value)

    with server(run) as ours:
        urls = {"tinderbox": f"{ours.url}/v1/completions", "llama.cpp": f"{llama.stdout.readline().strip()}/v1/completions"}
        for url in urls.values():
            complete(url, "a", 2)
        for i in range(ROUNDS):
            for name, url in urls.items():
                keep(f"{name}, tokens/s", tokens_per_s(url, prompts(2 * i)))
                firsts = at_once(lambda text, url=url: first_token_s(url, text), [(text,) for text in prompts(2 * i + 1)])
                keep(f"{name}, first token, s", statistics.median(firsts))
            same = prompts(100 + i, 30)[0]
            keep("the same prompt 16 times, tokens/s", tokens_per_s(urls["tinderbox"], [same] * N_CLIENTS))
            keep("generate --num-samples 16, tokens/s", generate_tokens_per_s(program, run, same))
            # Not within the first token, which takes as long after a long prompt as after a short one.
            long = TEXT[5000 * (i + 1) : 5000 * (i + 1) + 2500]
            (_, first), (_, again) = complete(urls["tinderbox"], long, 1), complete(urls["tinderbox"], long, 1)
            keep("saved by a prefix that was read, %", 100 * (1 - again / first))
    llama.stdin.close()
    for name, values in figures.items():
        print(f"speed: {name}: {statistics.median(values):.2f} ({', '.join(f'{value:.2f}' for value in values)})")
