"""The parts of scripts/check_serve.sh, which explains them."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

from clients import check_clients
from crowd import check_crowd
from llama_cpp_tests import check_llama_cpp
from schemas import check_schemas
from speed import check_speed

PROGRAM = pathlib.Path(os.environ["BUILT"]) / "tinderbox"
CONTEXT_LENGTH = 128


class Server:
    """`tinderbox serve` of a run, for a `with` block."""

    def __init__(self, run):
        self.run = run

    def __enter__(self):
        command = [PROGRAM, "serve", self.run, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"serving \S+ at (http://\S+)", line):
                self.url = found[1]
                return self
            print(line, end="", file=sys.stderr)
        raise SystemExit("the server does not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)


def generate(run, prompt, n):
    """The greedy completion of a prompt by `tinderbox generate`."""
    command = [PROGRAM, "generate", run, "--prompt", prompt, "--temperature", "0", "--max-new-tokens", str(n)]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert written.startswith(prompt) and written.endswith("\n"), written
    return written[len(prompt) : -1]


def check_openai(run):
    import openai

    prompts = ["The", "One day", "Once upon a time there was a", "She said", "\n"]
    with Server(run) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        model = client.models.list().data[0].id
        for prompt in prompts:
            settings = dict(model=model, prompt=prompt, max_tokens=60, logprobs=3, seed=11, n=2, stop=["zz", " and"])
            whole = client.completions.create(**settings)
            texts, tokens, scores, top, ends = ({0: start(), 1: start()} for start in (str, list, list, list, list))
            for chunk in client.completions.create(**settings, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
                    ends[choice.index].append(choice.finish_reason)
                    if choice.logprobs:
                        tokens[choice.index] += choice.logprobs.tokens
                        scores[choice.index] += choice.logprobs.token_logprobs
                        top[choice.index] += choice.logprobs.top_logprobs
            for choice in whole.choices:
                i = choice.index
                assert choice.text == texts[i], (choice.text, texts[i])
                assert choice.logprobs.tokens == tokens[i]
                assert choice.logprobs.token_logprobs == scores[i]
                assert choice.logprobs.top_logprobs == top[i]
                assert ends[i] == [None] * (len(ends[i]) - 1) + [choice.finish_reason], ends[i]
        print(f"openai: {len(prompts)} requests for 2 texts: streamed is what is not, in text and log-probabilities")

        def complete(prompt, n, temperature=0):
            settings = dict(model=model, prompt=prompt, max_tokens=n, temperature=temperature)
            return client.completions.create(**settings).choices[0].text

        expected = {prompt: generate(run, prompt, 200) for prompt in prompts}
        for prompt in prompts:
            assert complete(prompt, 200) == expected[prompt], prompt
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                others = [pool.submit(complete, prompts[i % 5], 150 + i, 1) for i in range(15)]
                assert pool.submit(complete, prompt, 200).result() == expected[prompt], prompt
                for other in others:
                    other.result()
        print(f"openai: {len(prompts)} greedy texts of 200 tokens are those of `generate`, alone and beside 15 others")
        try:
            client.completions.create(model=model, prompt="a", temperature=3)
            raise SystemExit("a wrong temperature is taken")
        except openai.BadRequestError as error:
            assert error.param == "temperature", error
        try:
            client.completions.create(model="other", prompt="a")
            raise SystemExit("a model that is not there is taken")
        except openai.NotFoundError as error:
            assert error.code == "model_not_found", error
    print("openai: errors are the package's own")


def write_tasks(folder):
    """A multiple-choice task of the second halves of sentences, and the perplexity of stories."""
    stories = pathlib.Path("data/stories.txt").read_text().split("\n\n")[-120:]
    sentences = [s for s in re.findall(r"[^.\n]{40,120}\.", "\n".join(stories))][:64]
    halves = [(s[: len(s) // 2], s[len(s) // 2 :]) for s in sentences]
    choice = [
        {"query": first.strip(), "choices": [halves[(i + k) % len(halves)][1] for k in range(4)], "gold": 0}
        for i, (first, _) in enumerate(halves)
    ]
    folder.mkdir(exist_ok=True)
    for name, docs in [("choice", choice), ("stories", [{"text": s.strip()} for s in stories[:24]])]:
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    data = "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {}\ntest_split: test\n"
    (folder / "choice.yaml").write_text(
        "task: local_choice\noutput_type: multiple_choice\n"
        + data.format((folder / "choice.jsonl").resolve())
        + 'doc_to_text: "{{query}}"\ndoc_to_target: gold\ndoc_to_choice: choices\ntarget_delimiter: ""\n'
        + "metric_list:\n  - metric: acc\n"
    )
    (folder / "stories.yaml").write_text(
        "task: local_stories\noutput_type: loglikelihood_rolling\n"
        + data.format((folder / "stories.jsonl").resolve())
        + 'doc_to_text: ""\ndoc_to_target: "{{text}}"\n'
        + "metric_list:\n  - metric: word_perplexity\n  - metric: byte_perplexity\n"
    )
    return ["local_choice", "local_stories"]


def check_lm_eval(run, work):
    import lm_eval
    from lm_eval.tasks import TaskManager

    exported = work / "exported"
    subprocess.run([PROGRAM, "export", run, "--to", "hf", "--output", exported, "--overwrite"], check=True)
    tasks = write_tasks(work / "tasks")

    def evaluate(model, arguments):
        manager = TaskManager(include_path=str(work / "tasks"), include_defaults=False)
        return lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=tasks, task_manager=manager, log_samples=True, bootstrap_iters=0
        )

    # The windows of a long text: lm-eval keeps one token of a server's context for what is written, and one for the prefix.
    window = CONTEXT_LENGTH - 2
    arguments = {"pretrained": str(exported), "device": "cpu", "dtype": "float32", "batch_size": 1, "max_length": window}
    by_hf = evaluate("hf", arguments)
    with Server(run) as server:
        arguments = {
            "model": pathlib.Path(run).name, "base_url": f"{server.url}/v1/completions", "tokenizer": str(exported),
            "max_length": CONTEXT_LENGTH, "num_concurrent": 4, "batch_size": 1, "tokenizer_backend": "huggingface",
        }
        by_server = evaluate("local-completions", arguments)

    def likelihoods(results):
        flat = {}
        for task in tasks:
            for sample in results["samples"][task]:
                for i, response in enumerate(sample["filtered_resps"]):
                    value = response[0] if isinstance(response, (list, tuple)) else response
                    flat[task, sample["doc_id"], i] = float(value)
        return flat

    ours, theirs = likelihoods(by_server), likelihoods(by_hf)
    assert ours.keys() == theirs.keys() and ours, (len(ours), len(theirs))
    worst = max(abs(ours[key] - theirs[key]) for key in ours)
    for task in tasks:
        for metric, value in by_hf["results"][task].items():
            if isinstance(value, float) and "stderr" not in metric:
                print(f"lm-eval: {task} {metric}: {by_server['results'][task][metric]:.6f}, by transformers {value:.6f}")
    print(f"lm-eval: {len(ours)} log-likelihoods differ by at most {worst:.2e} nats")
    accuracy = [results["results"]["local_choice"]["acc,none"] for results in (by_server, by_hf)]
    assert accuracy[0] == accuracy[1], accuracy
    assert worst < 1e-3, worst


def main():
    work = pathlib.Path(sys.argv[1])
    parts = sys.argv[2:] or ["openai", "clients", "schemas", "llama.cpp", "lm-eval", "crowd"]
    run = str(work / "run")
    checks = {
        "openai": lambda: check_openai(run),
        "clients": lambda: check_clients(work, Server),
        "schemas": lambda: check_schemas(work, Server),
        "llama.cpp": lambda: check_llama_cpp(work),
        "lm-eval": lambda: check_lm_eval(run, work),
        "crowd": lambda: check_crowd(run, Server),
        "speed": lambda: check_speed(PROGRAM, os.environ.get("RUN", run), work, Server),
    }
    for part in parts:
        checks[part]()


main()
