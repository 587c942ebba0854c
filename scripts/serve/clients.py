"""The part `clients` of scripts/check_serve.sh: what programs of others send, and whether they can use the answers.

The model is small and hardly trained; what it says does not matter, only the form. A request that the server refuses on
purpose is listed with its reason.
"""

import json
import os
import pathlib
import subprocess
import urllib.error
import urllib.request

PROGRAM = pathlib.Path(os.environ["BUILT"]) / "tinderbox"

# As Qwen's, in short, and without tokens of its own.
TEMPLATE = """{%- if tools %}{{- 'system: call <tool_call>{"name": ..., "arguments": ...}</tool_call>\n' }}
{%- for tool in tools %}{{- tool | tojson }}{% endfor %}{{- '\n' }}{%- endif %}
{%- for message in messages %}{{- message.role + ': ' + message.content }}
{%- for call in message.tool_calls %}{{- call.function.name }}({{ call.function.arguments | tojson }}){%- endfor %}
{{- '\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "likes": {"enum": ["tea", "milk"]}},
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "Who was there?"}]


def chat_run(work):
    """A run with a chat template, in a context that holds tools."""
    run = work / "chat"
    if not (run / "best").exists():
        settings = {
            "train.max_steps": 40, "train.batch_size": 1, "train.device": "cpu", "tokenizer.vocab_size": 512,
            "model.d_model": 64, "model.context_length": 1024, "train.eval_batches": 1,
        }
        arguments = [f"--set={key}={value}" for key, value in settings.items()]
        command = [PROGRAM, "train", "configs/quickstart.toml", "--run-dir", run, "--overwrite", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    config = {"chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}
    (run / "tokenizer_config.json").write_text(json.dumps(config))
    return run


class Checks:
    """Runs checks by name, and counts those that pass."""

    def __init__(self, client):
        self.client, self.n_passed, self.failed = client, 0, []

    def __call__(self, name, check):
        try:
            check()
            self.n_passed += 1
        except Exception as error:  # whatever a client makes of an answer
            self.failed.append(name)
            print(f"clients: {self.client}: {name} FAILED: {type(error).__name__}: {str(error)[:300]}")

    def end(self):
        n = self.n_passed + len(self.failed)
        print(f"clients: {self.client}: {self.n_passed} of {n} pass")
        return not self.failed


def is_person(text):
    person = json.loads(text)
    assert set(person) == set(PERSON["required"]), person
    assert isinstance(person["name"], str) and isinstance(person["age"], int), person
    assert person["likes"] in ["tea", "milk"], person
    return person


def is_weather(name, arguments):
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert name == "weather" and arguments["city"] in ["Oslo", "Rome"] and isinstance(arguments["days"], int), arguments


# Quotes are likelier with a bias: a model that is hardly trained would end few strings.
def with_schema(quote):
    schema = {"name": "person", "strict": True, "schema": PERSON}
    return {"response_format": {"type": "json_schema", "json_schema": schema}, "logit_bias": {str(quote): 4}}


# Values of the fields of the openai package's types that change nothing, and fields that are refused: each field of a
# type must be in one of them.
TEXT = {"type": "text"}
SAMPLING = {"temperature": 1, "top_p": 1, "seed": 3, "user": "me", "stream": False}
CACHE = {"prompt_cache_key": "a", "prompt_cache_options": {}, "prompt_cache_retention": "24h", "safety_identifier": "me"}
PENALTIES = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "n": 1, "stop": [], "stream_options": None}
NEUTRAL = {
    "/v1/completions": {
        **SAMPLING, **PENALTIES, "prompt": "Once", "best_of": 1, "echo": False, "logprobs": None, "max_tokens": 3,
        "suffix": None,
    },
    "/v1/chat/completions": {
        **SAMPLING, **CACHE, **PENALTIES, "messages": QUESTION, "audio": None, "function_call": "none", "functions": [],
        "logprobs": False, "max_completion_tokens": 3, "max_tokens": 3, "metadata": {"a": "b"}, "modalities": ["text"],
        "moderation": None, "parallel_tool_calls": True, "prediction": {"type": "content", "content": "a"},
        "reasoning_effort": "low", "response_format": TEXT, "service_tier": "auto", "store": False, "tool_choice": "none",
        "tools": [], "top_logprobs": 0, "verbosity": "medium", "web_search_options": None,
    },
    "/v1/responses": {
        **SAMPLING, **CACHE, "input": "Who?", "background": False, "conversation": None, "include": [],
        "instructions": None, "max_output_tokens": 3, "max_tool_calls": 1, "metadata": {}, "moderation": None,
        "parallel_tool_calls": True, "previous_response_id": None, "prompt": None, "reasoning": {"effort": None},
        "service_tier": "default", "store": False, "stream_options": None, "text": {"format": TEXT, "verbosity": "medium"},
        "tool_choice": "auto", "tools": [], "top_logprobs": 0, "truncation": "disabled",
    },
    "/v1/embeddings": {"input": "Once", "encoding_format": "float", "user": "me"},
}
REFUSED_FIELDS = {
    "/v1/completions": {"best_of": 2, "suffix": "a"},
    "/v1/chat/completions": {
        "audio": {"voice": "alloy", "format": "mp3"}, "moderation": {"model": "a"}, "web_search_options": {}, "store": True,
        "modalities": ["text", "audio"], "service_tier": "priority", "verbosity": "high", "functions": [{"name": "f"}],
        "top_logprobs": 2,
    },
    "/v1/responses": {
        "access_programs": {}, "background": True, "background_options": {}, "context_management": [{"type": "a"}],
        "conversation": "a", "image": {}, "include": ["message.output_text.logprobs"], "moderation": {"model": "a"},
        "previous_response_id": "resp_1", "prompt": {"id": "a"}, "tools": [WEATHER], "tool_choice": "required",
        "top_logprobs": 2, "truncation": "auto", "reasoning": {"summary": "auto"},
    },
    "/v1/embeddings": {"dimensions": 3},
}


def check_fields(url):
    import typing

    from openai.types import completion_create_params, embedding_create_params
    from openai.types.chat import completion_create_params as chat_create_params
    from openai.types.responses import response_create_params

    types = {
        "/v1/completions": completion_create_params.CompletionCreateParamsNonStreaming,
        "/v1/chat/completions": chat_create_params.CompletionCreateParamsNonStreaming,
        "/v1/responses": response_create_params.ResponseCreateParamsNonStreaming,
        "/v1/embeddings": embedding_create_params.EmbeddingCreateParams,
    }
    checks = Checks("fields of the openai package's types")

    def post(path, body):
        request = urllib.request.Request(url + path, json.dumps(body).encode())
        return json.load(urllib.request.urlopen(request))

    def known(path):
        unknown = set(typing.get_type_hints(types[path])) - {"model"} - set(NEUTRAL[path]) - set(REFUSED_FIELDS[path])
        assert not unknown, unknown

    def refused(path, field, value):
        needed = {name: NEUTRAL[path][name] for name in ("prompt", "messages", "input") if name in NEUTRAL[path]}
        try:
            post(path, {**needed, field: value})
        except urllib.error.HTTPError as error:
            assert error.code == 400 and json.load(error)["error"]["param"] == field, error
            return
        raise AssertionError("it is taken")

    for path in types:
        checks(f"{path}: all fields are known", lambda: known(path))
        checks(f"{path}: values that change nothing", lambda: post(path, NEUTRAL[path]))
        for field, value in REFUSED_FIELDS[path].items():
            checks(f"{path}: {field}", lambda: refused(path, field, value))
    return checks.end()


def check_openai(url, model, quote):
    import openai
    import pydantic

    class Person(pydantic.BaseModel):
        name: str
        age: int
        likes: str | None = None

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    checks, chat = Checks("openai"), client.chat.completions
    settings = {"model": model, "messages": QUESTION, "max_tokens": 400, "seed": 3}

    def models():
        assert client.models.list().data[0].id == model and client.models.retrieve(model).id == model

    def conversation():
        answer = chat.create(**settings)
        assert answer.choices[0].message.content and answer.usage.total_tokens > 0, answer

    def streamed():
        whole = chat.create(**settings).choices[0].message.content
        chunks = list(chat.create(**settings, stream=True, stream_options={"include_usage": True}))
        assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert chunks[-1].usage.completion_tokens > 0

    def scored():
        answer = chat.create(**settings, logprobs=True, top_logprobs=3)
        assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3

    def schema():
        for seed in range(5):
            is_person(chat.create(**{**settings, "seed": seed}, **with_schema(quote)).choices[0].message.content)

    def schema_streamed():
        with chat.stream(**settings, **with_schema(quote)) as stream:
            is_person(stream.get_final_completion().choices[0].message.content)

    def parsed():
        answer = chat.parse(**settings, response_format=Person, extra_body={"logit_bias": {str(quote): 4}})
        assert isinstance(answer.choices[0].message.parsed, Person), answer

    def json_mode():
        bias = {str(quote): 4}
        answer = chat.create(**settings, response_format={"type": "json_object"}, logit_bias=bias).choices[0]
        assert answer.finish_reason == "length" or isinstance(json.loads(answer.message.content), dict), answer

    def tools():
        answer = chat.create(**settings, tools=[WEATHER], tool_choice="required").choices[0]
        call = answer.message.tool_calls[0]
        assert answer.finish_reason == "tool_calls" and answer.message.content is None, answer
        is_weather(call.function.name, call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        messages = [*QUESTION, answer.message.model_dump(exclude_none=True), result]
        assert chat.create(**{**settings, "messages": messages}, tools=[WEATHER]).choices[0].finish_reason

    def tools_streamed():
        named = {"type": "function", "function": {"name": "weather"}}
        with chat.stream(**settings, tools=[WEATHER], tool_choice=named) as stream:
            call = stream.get_final_completion().choices[0].message.tool_calls[0]
        is_weather(call.function.name, call.function.arguments)

    def responses():
        settings = {"model": model, "input": "Who was there?", "instructions": "Be brief.", "max_output_tokens": 60}
        answer = client.responses.create(**settings, temperature=0)
        assert answer.output_text and answer.usage.output_tokens > 0, answer
        with client.responses.stream(**settings, temperature=0) as stream:
            for _ in stream:
                pass
        events = list(client.responses.create(**settings, temperature=0, stream=True))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text
        assert events[-1].response.output_text == answer.output_text

    def responses_parsed():
        text = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": {"enum": ["a", "b"]}}}
        assert json.loads(client.responses.create(model=model, input="Which?", text=text).output_text) in ("a", "b")

    def embeddings():
        data = client.embeddings.create(model=model, input=["One", "Two"]).data
        assert len(data) == 2 and len(data[0].embedding) == 64

    def errors():
        for changes, kind in [
            ({"temperature": 3}, openai.BadRequestError),
            ({"model": "none"}, openai.NotFoundError),
            ({"messages": []}, openai.BadRequestError),
        ]:
            try:
                chat.create(**{**settings, **changes})
            except kind:
                continue
            raise AssertionError(f"{changes} is taken")

    for check in [
        models, conversation, streamed, scored, schema, schema_streamed, parsed, json_mode, tools, tools_streamed,
        responses, responses_parsed, embeddings, errors,
    ]:
        checks(check.__name__, check)
    return checks.end()


def check_litellm(url, model, quote):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    litellm.suppress_debug_info = True
    checks = Checks("LiteLLM")
    settings = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}
    chat = {**settings, "messages": QUESTION, "max_tokens": 400, "seed": 3}

    def conversation():
        assert litellm.completion(**chat).choices[0].message.content

    def streamed():
        parts = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**chat, stream=True)]
        assert "".join(parts) == litellm.completion(**chat).choices[0].message.content

    def text():
        settings["model"] = f"text-completion-openai/{model}"
        assert litellm.text_completion(**settings, prompt="Once", max_tokens=20).choices[0].text

    def schema():
        is_person(litellm.completion(**chat, **with_schema(quote)).choices[0].message.content)

    def tools():
        answer = litellm.completion(**chat, tools=[WEATHER], tool_choice="required")
        call = answer.choices[0].message.tool_calls[0].function
        is_weather(call.name, call.arguments)

    def embeddings():
        data = litellm.embedding(**{**settings, "model": f"openai/{model}"}, input=["One"]).data
        assert len(data[0]["embedding"]) == 64

    def responses():
        answer = litellm.responses(**{**settings, "model": f"openai/{model}"}, input="Who?", max_output_tokens=20)
        assert answer.output[0].content[0].text

    for check in [conversation, streamed, text, schema, tools, embeddings, responses]:
        checks(check.__name__, check)
    return checks.end()


def check_langchain(url, model, quote):
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    checks = Checks("LangChain")
    settings = {"base_url": f"{url}/v1", "api_key": "none", "model": model, "max_retries": 0}
    chat = ChatOpenAI(**settings, max_tokens=400, seed=3)
    messages = [SystemMessage("Be brief."), HumanMessage("Who was there?")]

    def conversation():
        answer = chat.invoke(messages)
        assert answer.content and answer.usage_metadata["output_tokens"] > 0

    def streamed():
        chunks = list(chat.stream(messages))
        assert "".join(chunk.content for chunk in chunks) == chat.invoke(messages).content

    def batch():
        assert all(answer.content for answer in chat.batch([messages] * 4))

    def schema():
        biased = ChatOpenAI(**settings, max_tokens=400, seed=3, logit_bias={quote: 4})
        structured = biased.with_structured_output({"title": "person", **PERSON}, method="json_schema", strict=True)
        is_person(json.dumps(structured.invoke(messages)))

    def tools():
        @tool
        def weather(city: str, days: int) -> str:
            """The weather of a city."""
            return "rain"

        biased = ChatOpenAI(**settings, max_tokens=400, seed=3, logit_bias={quote: 4})
        answer = biased.bind_tools([weather], tool_choice="weather").invoke(messages)
        assert isinstance(answer, AIMessage) and answer.tool_calls[0]["name"] == "weather", answer
        assert isinstance(answer.tool_calls[0]["args"]["days"], int), answer

    def responses():
        chat = ChatOpenAI(**settings, max_tokens=60, use_responses_api=True)
        assert chat.invoke(messages).content
        assert "".join(str(chunk.text) for chunk in chat.stream(messages))

    def embeddings():
        model = OpenAIEmbeddings(**settings, check_embedding_ctx_length=False)
        assert len(model.embed_query("One")) == 64

    for check in [conversation, streamed, batch, schema, tools, responses, embeddings]:
        checks(check.__name__, check)
    return checks.end()


def open_webui(model):
    """The requests that Open WebUI makes of a connection of the kind OpenAI: routers/openai.py, routers/tasks.py and
    utils/payload.py of its backend (read 2026-11). It sends no `metadata`."""
    chat = {"model": model, "messages": QUESTION}
    params = {
        "temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "max_tokens": 40, "frequency_penalty": 0.5,
        "presence_penalty": 0.1, "seed": 3, "stop": ["\n\n"], "logit_bias": {"5": -10},
        "response_format": {"type": "text"},
    }
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    return [
        ("the list of models", "GET", "/v1/models", None, None),
        ("a chat", "POST", "/v1/chat/completions", {**chat, "stream": True, "max_tokens": 40}, None),
        (
            "a chat with usage", "POST", "/v1/chat/completions",
            {**chat, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 40}, None,
        ),
        ("a chat with parameters", "POST", "/v1/chat/completions", {**chat, "stream": True, **params}, None),
        (
            "a chat with a text in parts", "POST", "/v1/chat/completions",
            {**chat, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "max_tokens": 9}, None,
        ),
        ("a title", "POST", "/v1/chat/completions", {**chat, "stream": False, "max_completion_tokens": 40}, None),
        ("tags, follow-ups, queries", "POST", "/v1/chat/completions", {**chat, "stream": False}, None),
        (
            "native tools", "POST", "/v1/chat/completions",
            {**chat, "stream": True, "tools": [WEATHER], "max_tokens": 40}, None,
        ),
        (
            "the result of a tool", "POST", "/v1/chat/completions",
            {
                "model": model, "stream": True, "tools": [WEATHER], "max_tokens": 40,
                "messages": [
                    *QUESTION,
                    {
                        "role": "assistant", "content": "",
                        "tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                                        "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 1}'}}],
                    },
                    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
                ],
            }, None,
        ),
        ("vectors of documents", "POST", "/v1/embeddings", {"model": model, "input": ["One", "Two"]}, None),
        (
            "a chat by /responses", "POST", "/v1/responses",
            {"model": model, "stream": True, "input": [{"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "Hi"}]}], "max_output_tokens": 20}, None,
        ),
        (
            "an image", "POST", "/v1/chat/completions",
            {**chat, "messages": [{"role": "user", "content": [image]}]}, "models here read text only",
        ),
        (
            "an effort of reasoning", "POST", "/v1/chat/completions",
            {**chat, "reasoning_effort": "low", "max_tokens": 9}, None,
        ),
        ("speech", "POST", "/v1/audio/speech", {"model": model, "input": "Hi", "voice": "alloy"}, "models here write text only"),
    ]


def check_open_webui(url, model):
    checks, refused = Checks("Open WebUI's requests"), []

    def ask(method, path, body):
        headers = {"Content-Type": "application/json", "Authorization": "Bearer none"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers, method=method)) as response:
            text = response.read().decode()
        if not (body or {}).get("stream"):
            return json.loads(text)
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        assert events and (path == "/v1/responses" or events[-1] == "[DONE]"), text
        for event in events:
            assert event == "[DONE]" or "error" not in json.loads(event) or json.loads(event)["error"] is None, event
            assert event == "[DONE]" or json.loads(event)

    for name, method, path, body, reason in open_webui(model):
        if reason is None:
            checks(name, lambda: ask(method, path, body))
            continue
        try:
            ask(method, path, body)
            checks(name, lambda: 1 / 0)  # it is refused no more: the list is out of date
        except urllib.error.HTTPError as error:
            assert error.code in (400, 404), error
            refused.append(f"{name} ({reason})")
    print(f"clients: Open WebUI's requests: refused: {'; '.join(refused)}")
    return checks.end()


def check_clients(work, server):
    run = chat_run(work)
    with server(str(run)) as running:
        url, model = running.url, run.name
        body = json.dumps({"content": '"'}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/tokenize", body)) as response:
            quote = json.load(response)["tokens"][0]
        parts = [
            check_fields(url), check_openai(url, model, quote), check_litellm(url, model, quote), check_langchain(url, model, quote),
            check_open_webui(url, model),
        ]
    assert all(parts), "a client fails"
