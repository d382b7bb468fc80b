"""Real clients against a running server: python smoke.py URL KEY. Fails on the first thing that is wrong."""

import json
import os
import subprocess
import sys
import time
import urllib.request

import anthropic
import ollama
import openai
from pydantic import BaseModel

# Its own list of prices will do: it would ask a host for a newer one.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # noqa: E402

URL, KEY = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
MODEL = client.models.list().data[0].id
ASK = [{"role": "user", "content": "Tell me a short story about a fox."}]
SKIPPED = []
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def get(path):
    request = urllib.request.Request(f"{URL}{path}", headers={"Authorization": f"Bearer {KEY}"})
    return json.load(urllib.request.urlopen(request))


def text_of(message):
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


def stream_equals_whole():
    how = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**how)
    text = ""
    for chunk in client.chat.completions.create(**how, stream=True):
        delta = chunk.choices[0].delta
        text += (getattr(delta, "reasoning_content", None) or "") + (delta.content or "")
    assert text == text_of(whole.choices[0].message) and text, (text, whole)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert client.models.retrieve(MODEL).id == MODEL


def include_usage():
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    last = list(stream)[-1]
    assert last.choices == [] and last.usage.completion_tokens <= 4, last


def logprobs():
    how = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**how)
    tokens = [t.token for t in whole.choices[0].logprobs.content]
    streamed = []
    for chunk in client.chat.completions.create(**how, stream=True):
        if chunk.choices[0].logprobs:
            streamed += [t.token for t in chunk.choices[0].logprobs.content]
    assert streamed == tokens and len(tokens) == whole.usage.completion_tokens
    legacy = client.completions.create(model=MODEL, prompt="a b c d", max_tokens=0, echo=True, logprobs=1)
    scores = legacy.choices[0].logprobs.token_logprobs
    assert scores[0] is None and all(s <= 0 for s in scores[1:])


def tools_helper():
    with client.chat.completions.stream(model=MODEL, messages=ASK, tools=[TOOL], max_tokens=16) as stream:
        try:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError:
            # The helper parses only answers that ended; the tiny model need not end.
            return
    assert final.choices[0].finish_reason in ("stop", "tool_calls")


def forced_tools():
    """Two streamed calls and a schema need constraints; a server without them says so by 501."""

    class Place(BaseModel):
        name: str

    try:
        parsed = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Place, max_tokens=200)
        choice = parsed.choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(choice.message.parsed, Place)
    except openai.LengthFinishReasonError:
        pass
    except openai.InternalServerError as e:
        assert e.status_code == 501, e
        SKIPPED.append("response_format: " + e.body["message"])
    try:
        calls = client.chat.completions.create(
            model=MODEL, messages=ASK, tools=[TOOL], tool_choice="required", max_tokens=200, stream=True
        )
        ids, arguments, finish = {}, {}, None
        for chunk in calls:
            for call in chunk.choices[0].delta.tool_calls or []:
                ids.setdefault(call.index, call.id)
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
            finish = chunk.choices[0].finish_reason or finish
        if finish == "tool_calls":
            assert ids and all(ids.values()) and all(json.loads(a) is not None for a in arguments.values())
    except openai.InternalServerError as e:
        assert e.status_code == 501, e
        SKIPPED.append("tool_choice required: " + e.body["message"])


def embeddings():
    # The client asks for base64 where nothing is said.
    both = client.embeddings.create(model=MODEL, input=["a small fox", "b"])
    rows = [e.embedding for e in both.data]
    alone = client.embeddings.create(model=MODEL, input="a small fox", encoding_format="float").data[0].embedding
    assert [e.index for e in both.data] == [0, 1] and len(rows[0]) == len(rows[1]), both
    assert all(abs(a - b) < 1e-6 for a, b in zip(rows[0], alone, strict=True)), "base64 differs from float"
    assert abs(sum(x * x for x in alone) - 1) < 1e-5 and both.usage.total_tokens > 1
    short = client.embeddings.create(model=MODEL, input="a small fox", dimensions=4).data[0].embedding
    assert len(short) == 4 and abs(sum(x * x for x in short) - 1) < 1e-5
    try:
        client.embeddings.create(model=MODEL, input=[])
        raise AssertionError("no input was taken")
    except openai.BadRequestError as e:
        assert e.body["param"] == "input", e.body


def errors():
    try:
        client.completions.create(model=MODEL, prompt=[7] * 100_000)
        raise AssertionError("an over-long prompt was taken")
    except openai.BadRequestError as e:
        assert e.body["n_prompt_tokens"] == 100_000 and e.body["n_ctx"] > 0, e.body
        assert "exceeds the available context size" in e.body["message"]
    try:
        openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key was taken")
    except openai.AuthenticationError:
        pass


def anthropic_messages():
    a = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    # This client has no word for the temperature, which the server reads.
    how = {"model": MODEL, "messages": ASK, "max_tokens": 24, "extra_body": {"temperature": 0}}
    whole = a.messages.create(**how)
    with a.messages.stream(**how) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    text = lambda m: [(b.type, getattr(b, "text", None) or getattr(b, "thinking", None)) for b in m.content]
    assert text(final) == text(whole) and final.stop_reason == whole.stop_reason, (final, whole)
    assert a.messages.count_tokens(model=MODEL, messages=ASK).input_tokens == whole.usage.input_tokens + (
        whole.usage.cache_read_input_tokens or 0
    )
    tool = {"name": "weather", "description": "d", "input_schema": TOOL["function"]["parameters"]}
    with a.messages.stream(**how, tools=[tool]) as stream:
        stream.get_final_message()
    try:
        a.messages.create(model=MODEL, messages=[], max_tokens=3)
        raise AssertionError("no message was taken")
    except anthropic.BadRequestError as e:
        assert e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error"


def responses():
    how = {"model": MODEL, "input": ASK, "max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**how)
    with client.responses.stream(**how) as stream:
        events = list(stream)
    # The helper gives only answers that ended; the last event has the others too.
    kinds, final = [e.type for e in events], events[-1].response
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    text = lambda r: [c.text for o in r.output for c in (o.content or [])]
    assert text(final) == text(whole) and final.status == whole.status, (final, whole)


def disconnect():
    stream = client.chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    for _ in range(200):
        if not any(s["is_processing"] for s in get("/slots")):
            return
        time.sleep(0.01)
    raise AssertionError("a slot is busy long after its client has gone")


def ollama_client():
    o = ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})
    how = {"model": MODEL, "messages": ASK, "options": {"temperature": 0, "num_predict": 16}}
    whole = o.chat(**how)
    parts = list(o.chat(**how, stream=True))
    join = lambda key: "".join(getattr(p.message, key) or "" for p in parts)
    assert join("content") == (whole.message.content or "") and join("thinking") == (whole.message.thinking or "")
    assert parts[-1].done and parts[-1].eval_count == whole.eval_count
    assert o.generate(model=MODEL, prompt="a", raw=True, options={"num_predict": 4, "temperature": 0}).done
    assert o.list().models[0].model == MODEL and o.show(MODEL).capabilities
    rows = o.embed(model=MODEL, input=["a small fox", "b"]).embeddings
    assert len(rows) == 2 and abs(sum(x * x for x in rows[0]) - 1) < 1e-5
    assert len(o.embeddings(model=MODEL, prompt="a small fox").embedding) == len(rows[0])


def litellm_adapters():
    how = {"messages": ASK, "api_key": KEY, "temperature": 0, "max_tokens": 8, "num_retries": 0}
    whole = litellm.completion(model=f"openai/{MODEL}", api_base=f"{URL}/v1", **how)
    parts = list(litellm.completion(model=f"openai/{MODEL}", api_base=f"{URL}/v1", stream=True, **how))
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert litellm.completion(model=f"anthropic/{MODEL}", api_base=URL, **how).usage.completion_tokens <= 8


def llm_command():
    code = (
        "import llm; from llm.default_plugins.openai_models import Chat\n"
        f"m = Chat('x', model_name={MODEL!r}, api_base={URL + '/v1'!r}); m.key = {KEY!r}\n"
        "r = m.prompt('Hello', stream=True, max_tokens=8, key=m.key); print(len(r.text()) >= 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "True" in done.stdout, done.stderr


CHECKS = [
    stream_equals_whole, include_usage, logprobs, tools_helper, forced_tools, embeddings, errors, anthropic_messages,
    responses, disconnect, ollama_client, litellm_adapters, llm_command,
]
for check in CHECKS:
    start = time.time()
    check()
    print(f"{check.__name__}: passed in {time.time() - start:.1f} s", flush=True)
for what in SKIPPED:
    print(f"skipped: {what}")
assert get("/health") == {"status": "ok"}
