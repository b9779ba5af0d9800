"""An example, not a product: a small server of one Llama with an OpenAI-compatible endpoint and a web page that shows its KV cache.

    python examples/serve.py                     # random weights, bytes as tokens: nothing to download
    python examples/serve.py --model FOLDER      # config.json, *.safetensors and tokenizer of a Llama as Hugging Face lays it out

It shows what Girih does in an engine (`serving/engine.py`) and a model (`serving/model.py`): paged KV cache, plans of mixed batches,
shared prefixes, sampling. Needs torch, fastapi, uvicorn; with --model also safetensors and transformers. docs/serve.md says more.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
import uvicorn
from serving.engine import Engine, EngineThread
from serving.model import Llama, load, random_model
from serving.server import make_app
from serving.text import ByteTokenizer, FolderTokenizer, Tokenizer


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serves one Llama: an example of Girih in an engine.")
    parser.add_argument("--model", type=Path, help="folder of weights; without: a small model of random weights")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--threads", type=positive, help="threads on the CPU (default: one a core)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="default: the model's")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pages", type=positive, default=512, help="pages of the KV cache (default: 512)")
    parser.add_argument("--page-size", type=positive, default=16, help="tokens a page (default: 16)")
    parser.add_argument("--max-len", type=positive, default=2048, help="tokens of a request, at most (default: 2048)")
    parser.add_argument("--token-budget", type=positive, default=256, help="tokens a step (default: 256)")
    parser.add_argument("--max-requests", type=positive, default=32, help="requests in a batch (default: 32)")
    parser.add_argument(
        "--min-shared", type=positive, default=128, help="tokens of a prefix that is worth a segment (default: 128)"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    tokenizer: Tokenizer
    if args.model is None:
        tokenizer = ByteTokenizer()
        config, weights = random_model(tokenizer.vocab_size)
        name = "random-llama"
    else:
        config, weights = load(args.model)
        tokenizer = FolderTokenizer(args.model, config.eos_tokens)
        name = args.model.resolve().name
    dtype = config.dtype if args.dtype is None else getattr(torch, args.dtype)
    max_len = min(args.max_len, config.max_len)
    model = Llama(
        replace(config, dtype=dtype),
        weights,
        num_pages=args.pages,
        page_size=args.page_size,
        max_len=max_len,
        device=args.device,
        num_threads=args.threads or 0,
    )
    engine = Engine(
        model,
        tokenizer,
        num_pages=args.pages,
        page_size=args.page_size,
        max_len=max_len,
        token_budget=args.token_budget,
        max_requests=args.max_requests,
        min_shared_tokens=args.min_shared,
    )
    print(f"{name}: http://{args.host}:{args.port}/", flush=True)
    app = make_app(EngineThread(engine), name)
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
