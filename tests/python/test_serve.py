"""examples/serve.py: its tokens are those of transformers whatever the batch, its endpoint is OpenAI's, its pages come back."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import browser
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("fastapi")
openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("safetensors")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from serving.engine import BadRequest, Engine, EngineThread, Output, Request, Sampling
from serving.model import Config, Llama, load, random_model
from serving.pages import PagePool, page_hashes
from serving.server import make_app
from serving.text import ByteTokenizer, FolderTokenizer, TextStream

PAGE = 4
MESSAGES: Any = [{"role": "user", "content": "How are you?"}]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These matrices are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def free_tokenizer(vocab_size: int) -> ByteTokenizer:
    """Every token may be sampled."""
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size, tokenizer.allowed = vocab_size, None
    return tokenizer


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' Llama of random weights, and the folder where it has saved them."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=258,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=256,
        initializer_range=0.3,
        attention_bias=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return model, folder


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    given = torch.tensor([prompt])
    out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=num_tokens, do_sample=False)
    return list(out[0, len(prompt) :].tolist())


def make_engine(
    config: Config, weights: Any, num_pages: int, page: int = PAGE, max_len: int = 256, **more: Any
) -> Engine:
    model = Llama(config, weights, num_pages=num_pages, page_size=page, max_len=max_len, device="cpu", num_threads=1)
    tokenizer = more.pop("tokenizer", None) or free_tokenizer(config.vocab_size)
    return Engine(model, tokenizer, num_pages=num_pages, page_size=page, max_len=max_len, **more)


def submit(engine: Engine, prompt: list[int], sampling: Sampling) -> tuple[Request, list[Output]]:
    outputs: list[Output] = []
    request = engine.make_request(prompt, sampling, outputs.append)
    engine.submit(request)
    return request, outputs


def finish(engine: Engine) -> None:
    for _ in range(5000):
        if not engine.busy:
            break
        engine.step()
    assert not engine.busy
    assert engine.pool.num_available == engine.pool.num_pages and not any(engine.pool.references)


def new_tokens(request: Request) -> list[int]:
    return request.tokens[request.prompt_len :]


def prompts(seed: int) -> list[list[int]]:
    """Lengths around those of pages and chunks; the first four begin with the same 24 tokens, two of them with 32."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> list[int]:
        return list(torch.randint(0, 256, (n,), generator=generator).tolist())

    prefix = tokens(24)
    longer = prefix + tokens(8)
    return [prefix + tokens(1), longer + tokens(5), longer + tokens(13), prefix[:], tokens(1), tokens(4), tokens(41)]


@pytest.mark.parametrize(
    ("num_pages", "more"),
    [
        (200, {"token_budget": 64, "max_requests": 8, "min_shared_tokens": 16}),
        (200, {"token_budget": 8, "max_requests": 8, "min_shared_tokens": 1 << 30}),
        (24, {"token_budget": 16, "max_requests": 5, "min_shared_tokens": 8}),
    ],
    ids=["cascade", "chunks", "preemption"],
)
def test_greedy_tokens_are_those_of_transformers(reference: Any, num_pages: int, more: dict[str, int]) -> None:
    model, folder = reference
    config, weights = load(folder)
    assert config.rope_llama3 is not None and config.num_kv_heads == 2
    engine = make_engine(config, weights, num_pages, **more)
    requests = []
    for i, prompt in enumerate(prompts(3)):  # the later ones find what the first has computed
        requests.append((prompt, 20 + i, submit(engine, prompt, Sampling(temperature=0, max_tokens=20 + i))))
        if i == 0:
            while requests[0][2][0].computed < len(prompt):
                engine.step()
    segments = set()
    while engine.busy:
        engine.step()
        segments.add(engine.stats.recent[-1].num_segments)
    for prompt, count, (request, outputs) in requests:
        assert new_tokens(request) == greedy(model, prompt, count)
        assert [o.finish_reason for o in outputs] == [None] * (count - 1) + ["length"]
    finish(engine)
    assert requests[1][2][0].cached == 24 and requests[3][2][0].cached == 20 and requests[6][2][0].cached == 0
    assert (engine.stats.preempted > 0) == (num_pages == 24)
    assert segments == ({1} if more["min_shared_tokens"] > 256 else {1, 2})


def test_a_draw_does_not_depend_on_the_batch(reference: Any) -> None:
    config, weights = load(reference[1])
    sampling = Sampling(temperature=0.9, top_p=0.9, top_k=40, seed=11, max_tokens=16, num_logprobs=2)
    alone = make_engine(config, weights, 64, token_budget=32, max_requests=8)
    first, _ = submit(alone, [1, 2, 3], sampling)
    finish(alone)
    crowd = make_engine(config, weights, 40, token_budget=8, max_requests=8)
    for i in range(5):
        submit(crowd, [9, 8, i] * (i + 4), Sampling(seed=i, max_tokens=12))
    second, outputs = submit(crowd, [1, 2, 3], sampling)
    other, _ = submit(crowd, [1, 2, 3], Sampling(temperature=0.9, seed=12, max_tokens=16))
    finish(crowd)
    assert new_tokens(first) == new_tokens(second) != new_tokens(other)
    assert all(len(o.logprobs) == 1 and len(o.logprobs[0].top) == 2 for o in outputs)
    with torch.inference_mode():
        logits = reference[0](torch.tensor([first.tokens])).logits[0, 2:-1].float() / 0.9
    expected = logits.log_softmax(-1)
    for i, output in enumerate(outputs):
        one = output.logprobs[0]
        assert abs(one.logprob - expected[i, one.token]) < 1e-3
        assert [token for token, _ in one.top] == expected[i].topk(2).indices.tolist()


def test_requests_that_cannot_be(reference: Any) -> None:
    engine = make_engine(*load(reference[1]), 20, token_budget=8, max_requests=4)
    for prompt, sampling, param in (
        ([], Sampling(), "prompt"),
        ([1, 258], Sampling(), "prompt"),
        ([1] * 80, Sampling(), "prompt"),
        ([1] * 70, Sampling(max_tokens=11), "max_tokens"),
    ):
        with pytest.raises(BadRequest) as caught:
            engine.make_request(prompt, sampling, print)
        assert caught.value.param == param
    assert engine.make_request([1] * 70, Sampling(), print).max_tokens == 10
    with pytest.raises(ValueError, match="model_type='gpt2'"):
        Config.from_dict({"model_type": "gpt2"})


def test_pool() -> None:
    pool = PagePool(3, 2)
    hashes = page_hashes([1, 2, 3, 4, 5], 2)
    assert len(hashes) == 2 and hashes == page_hashes([1, 2, 3, 4], 2, hashes[:1])
    assert page_hashes([9, 9, 3, 4], 2)[1] != hashes[1]
    pages = [pool.allocate(), pool.allocate()]
    for page, hash_ in zip(pages, hashes, strict=True):
        assert page is not None
        pool.publish(page, hash_)
    kept = [page for page in pages if page is not None]
    assert pool.share(hashes[0]) == kept[0] and pool.references[kept[0]] == 2
    pool.release([kept[0]])
    pool.release(kept)
    assert pool.num_available == 3 and pool.num_cached == 2
    third = pool.allocate()
    assert third not in kept and pool.allocate() == kept[1]  # the end of a prefix goes before its beginning
    assert pool.share(hashes[1]) is None and pool.share(hashes[0]) == kept[0]
    assert pool.allocate() is None


def test_text_is_held_back() -> None:
    tokenizer = free_tokenizer(258)
    stream = TextStream(tokenizer, ["stop", "top secret"])
    pieces = [stream.push(token) for token in "über sto, stop it".encode() if not stream.stopped]
    assert pieces[:2] == ["", "ü"] and "".join(pieces) == "über sto, " and stream.stopped and stream.finish() == ""
    stream = TextStream(tokenizer, ["stop"])
    assert "".join(stream.push(token) for token in b"\xc3a st") == "\ufffda " and stream.finish() == "st"


def test_a_tokenizer_of_a_folder(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    bpe.train_from_iterator(["girih tiles, star tiles, and girih again"] * 3, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(tmp_path)
    plain = FolderTokenizer(tmp_path, frozenset())
    assert plain.eos_tokens == {1} and FolderTokenizer(tmp_path, frozenset([7])).eos_tokens == {7}
    text = "girih: ﷽ and 🌟 tiles"
    tokens = plain.encode(text)
    stream = TextStream(plain, [])
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.finish() == text and not any("\ufffd" in piece for piece in pieces)
    assert len(tokens) < len(text.encode()) and plain.decode([*tokens, 1]) == text
    assert plain.decode(plain.encode_chat(MESSAGES)) == "user: How are you?\nassistant:"
    fast.chat_template = "{% for m in messages %}<s>{{ m.role }}|{{ m.content }}</s>{% endfor %}<s>assistant|"
    fast.save_pretrained(tmp_path)
    chat = FolderTokenizer(tmp_path, frozenset()).encode_chat(MESSAGES)
    assert chat == plain.encode("<s>user|How are you?</s><s>assistant|") and chat[0] == 0


def test_bfloat16(reference: Any) -> None:
    """The same tokens as long as rounding does not decide: the first ones are clear."""
    config, weights = load(reference[1])
    engine = make_engine(replace(config, dtype=torch.bfloat16), weights, 64, token_budget=16, max_requests=4)
    requests = [submit(engine, prompt, Sampling(temperature=0, max_tokens=1, num_logprobs=1)) for prompt in prompts(3)]
    finish(engine)
    model = reference[0]
    for prompt, (_, outputs) in zip(prompts(3), requests, strict=True):
        one = outputs[0].logprobs[0]
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        assert abs(one.logprob - float(expected[one.token])) < 0.3 and expected.max() - expected[one.token] < 0.3


# ---- the endpoint


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, EngineThread]]:
    tokenizer = ByteTokenizer()
    config, weights = random_model(tokenizer.vocab_size)
    sizes = {"page": 8, "max_len": 1024, "token_budget": 64, "max_requests": 8}
    engine = EngineThread(make_engine(config, weights, 400, tokenizer=tokenizer, **sizes))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        http = uvicorn.Server(uvicorn.Config(make_app(engine, "babbler"), log_level="warning"))
        thread = threading.Thread(target=lambda: asyncio.run(http.serve([listener])))
        thread.start()
        while not http.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", engine
        http.should_exit = True
        thread.join()


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=server[0] + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_completions(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["babbler"]
    asked: dict[str, Any] = {"model": "babbler", "prompt": "Hello", "max_tokens": 24, "seed": 3, "temperature": 0.8}
    whole = client.completions.create(**asked, logprobs=3)
    choice = whole.choices[0]
    assert choice.finish_reason == "length" and len(choice.text) == 24 and choice.text.isascii()
    assert "".join(choice.logprobs.tokens) == choice.text and len(choice.logprobs.top_logprobs[0]) == 3
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 24)
    pieces = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].text for p in pieces[:-1]) == choice.text and len(pieces) > 10
    assert pieces[-1].usage.completion_tokens == 24 and pieces[-1].choices == []
    # Several prompts and choices; a stop string is cut off.
    stop = choice.text[10:12]
    several = client.completions.create(**asked | {"prompt": ["Hello", "Goodbye"]}, n=2, stop=stop).choices
    assert [c.index for c in several] == [0, 1, 2, 3] and len({c.text for c in several}) == 4
    assert several[0].text == choice.text[: choice.text.index(stop)] and several[0].finish_reason == "stop"
    tokens = client.completions.create(**asked | {"prompt": [256, *b"Hello"]})
    assert tokens.choices[0].text == choice.text


def test_chat(client: Any) -> None:
    asked: dict[str, Any] = {"model": "babbler", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 20}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    content = whole.choices[0].logprobs.content
    assert "".join(one.token for one in content) == text and content[0].top_logprobs[0].token == content[0].token
    pieces = list(client.chat.completions.create(**asked, stream=True, logprobs=True))
    assert pieces[0].choices[0].delta.role == "assistant" and pieces[-1].choices[0].finish_reason == "length"
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == text
    assert sum(len(p.choices[0].logprobs.content) for p in pieces if p.choices[0].logprobs) == 20
    # The next turn finds the pages of this one.
    longer = [*MESSAGES, {"role": "assistant", "content": text[1:]}, {"role": "user", "content": "Go on"}]
    again = client.chat.completions.create(**asked | {"messages": longer})
    assert again.usage.prompt_tokens_details.cached_tokens >= 24


@pytest.mark.parametrize(
    ("change", "param", "text"),
    [
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 5000}, "max_tokens", "the context has 1024"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "poet", "content": ""}]}, "messages.0.role", "'system'"),
        ({"messages": [{"role": "user", "content": "a" * 1100}]}, "prompt", "the context has 1024"),
        ({"presence_penalty": 1}, "presence_penalty", "not a parameter"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs=true"),
        ({"stop": [""]}, "stop", "not empty"),
        ({"n": 17}, "n", "less than or equal to 16"),
    ],
)
def test_wrong_parameters(client: Any, change: dict[str, Any], param: str, text: str) -> None:
    asked: dict[str, Any] = {"model": "babbler", "messages": MESSAGES, "max_tokens": 4, **change}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked)
    assert text in caught.value.body["message"] and caught.value.body["param"] == param
    assert caught.value.body["type"] == "invalid_request_error"


def test_other_errors(server: Any, client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has 'babbler'"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.BadRequestError, match="no prompt"):
        client.completions.create(model="babbler", prompt=[])
    with pytest.raises(openai.BadRequestError, match="token 999"):
        client.completions.create(model="babbler", prompt=[999])
    broken = httpx.post(server[0] + "/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 400 and broken.json()["error"]["type"] == "invalid_request_error"
    lost = httpx.get(server[0] + "/v1/nothing")
    assert lost.status_code == 404 and "message" in lost.json()["error"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_pages(server: Any, stream: bool) -> None:
    base, engine = server
    before = engine.snapshot["cancelled"]
    asked = {"model": "babbler", "prompt": "Tell me all", "max_tokens": 1000, "n": 3, "stream": stream}

    def wait_for(condition: Any) -> Any:
        end = time.monotonic() + 20
        while not condition(engine.snapshot):
            assert time.monotonic() < end, engine.snapshot
            time.sleep(0.01)

    if stream:
        with httpx.stream("POST", base + "/v1/completions", json=asked) as response:
            lines = response.iter_lines()  # the response is open as long as this is alive
            assert next(lines).startswith("data: ")
            wait_for(lambda s: s["used"] > 0 and len(s["requests"]) == 3)
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(base + "/v1/completions", json=asked, timeout=0.2)
    wait_for(lambda s: s["cancelled"] == before + 3 and s["used"] == 0 and not s["requests"])


def test_page(server: Any) -> None:
    page = httpx.get(server[0] + "/")
    assert page.status_code == 200 and "text/html" in page.headers["content-type"]
    assert "http" not in page.text.replace("http://www.w3.org/", "")  # nothing is fetched from elsewhere
    state = httpx.get(server[0] + "/state").json()
    assert len(state["pages"]) == len(state["references"]) == 400 and state["model"] == "babbler"


@pytest.mark.skipif(browser.COMMAND is None, reason="needs Chromium")
def test_page_in_a_browser(server: Any) -> None:
    """A chat from typing to its last token, and the pages, tiles and requests beside it."""
    with browser.Browser() as page:
        page.call("Page.enable")
        page.call("Page.navigate", url=server[0] + "/")
        page.wait("document.readyState === 'complete' && document.getElementById('model')?.textContent.includes('babbler')")
        page.wait("document.getElementById('tiles').children.length")
        page.value(
            "document.getElementById('max_tokens').value = 300; document.getElementById('prompt').value = 'How are you?';"
            " document.getElementById('send').click()"
        )
        page.wait("document.getElementById('batch').rows[0]?.cells.length > 1")
        answered = "[...document.querySelectorAll('.message.assistant')].map(m => m.textContent).filter(t => t.length > 20)"
        page.wait(answered + ".length === 1")
        page.wait("document.getElementById('batch').rows[0].cells.length === 1")  # it says that there is none
        assert page.value("document.querySelectorAll('.message.user').length") == 1
        assert page.value("document.getElementById('link').className") != "lost"
        # The grid of pages has colours of more than one kind: those in use are told from the free ones.
        colours = page.value(
            "(() => { const c = document.getElementById('grid'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " const s = new Set(); for (let i = 0; i < d.length; i += 4) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return s.size })()"
        )
        assert colours > 1


def test_the_client_of_the_docs(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    assert code.count("http://127.0.0.1:8000") == 1
    exec(code.replace("http://127.0.0.1:8000", server[0]), {})
    assert len(capsys.readouterr().out) == 200
