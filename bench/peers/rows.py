#!/usr/bin/env python3
"""Times FlashInfer and PyTorch on the cases of `girih bench norm|activation|rope --backend cuda` and puts them beside girih's rows.

    girih bench norm --backend cuda --json ours.json
    bench/peers/rows.py --results ours.json --json bench/results/h200/norm.json

Run both on one machine, one after the other. The protocol is girih's: the call in a CUDA graph, 256 MB overwritten before each replay, the
median between events. A case that a peer does not do has no row of that peer. Ratio: the peer's seconds over girih's.
"""

import argparse
import importlib
import json
import re
import statistics

import torch

DEVICE = "cuda"


class Clock:
    def __init__(self):
        self.cold = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)

    def __call__(self, call, repeats=15):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        times = []
        for i in range(repeats + 3):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.cold.fill_(i)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3)
        return statistics.median(times[3:])


def bf16(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device=DEVICE)


def norm_calls(name, rows, flashinfer):
    """Pairs of a peer's name and its call; empty where none does the case."""
    match = re.fullmatch(r"(add_)?rms_(\d+)(_e4m3_tensor)?", name)
    if not match:
        return
    add, dim, quantised = bool(match[1]), int(match[2]), bool(match[3])
    x, w, out = bf16(rows, dim), bf16(dim), bf16(rows, dim)
    if add:
        r = bf16(rows, dim)
        if flashinfer:
            yield "flashinfer", lambda: flashinfer.fused_add_rmsnorm(x, r, w, 1e-6)
    elif quantised:
        codes = torch.empty(rows, dim, dtype=torch.float8_e4m3fn, device=DEVICE)
        scale = torch.tensor([0.02], device=DEVICE)
        if flashinfer:
            yield "flashinfer", lambda: flashinfer.norm.rmsnorm_quant(codes, x, w, scale, 1e-6)
    else:
        if flashinfer:
            yield "flashinfer", lambda: flashinfer.rmsnorm(x, w, 1e-6, out=out)
        compiled = torch.compile(lambda x, w: torch.nn.functional.rms_norm(x, (dim,), w, 1e-6))
        yield "torch.compile", lambda: compiled(x, w)


def activation_calls(name, rows, flashinfer):
    match = re.fullmatch(r"(silu|gelu|gelu_tanh)_(\d+)", name)
    if not match:
        return
    kind, dim = match[1], int(match[2])
    x, out = bf16(rows, 2 * dim), bf16(rows, dim)
    if flashinfer:
        call = {"silu": flashinfer.silu_and_mul, "gelu": flashinfer.gelu_and_mul, "gelu_tanh": flashinfer.gelu_tanh_and_mul}[kind]
        yield "flashinfer", lambda: call(x, out=out)
    act = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
           "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh")}[kind]
    compiled = torch.compile(lambda x: act(x[:, :dim]) * x[:, dim:])
    yield "torch.compile", lambda: compiled(x)


def rope_calls(name, rows, flashinfer):
    match = re.fullmatch(r"rope_(interleaved_)?(\d+)x(\d+)x(\d+)", name)
    if not match or not flashinfer:
        return
    q, k = bf16(rows, int(match[2]) * int(match[4])), bf16(rows, int(match[3]) * int(match[4]))
    table = torch.randn(max(rows, 16), int(match[4]), device=DEVICE)
    positions = torch.arange(rows, dtype=torch.int64, device=DEVICE)
    neox = match[1] is None
    yield "flashinfer", lambda: flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(positions, q, k, int(match[4]), table, neox)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--preload", action="append", default=[])
    options = parser.parse_args()
    for module in options.preload:
        importlib.import_module(module)
    try:
        import flashinfer
    except ImportError as error:
        flashinfer = None
        print("flashinfer: not here:", error)
    results = json.load(open(options.results))
    clock = Clock()
    for row in results["rows"]:
        name, rows = re.fullmatch(r"(.+)_r(\d+)", row["case"]).groups()
        calls = {"norm": norm_calls, "activation": activation_calls, "rope": rope_calls}[row["op"]]
        for peer, call in calls(name, int(rows), flashinfer):
            try:
                seconds = clock(call)
            except Exception as error:  # one peer's failure does not lose the others
                print(f"{row['case']:<36} {peer}: {str(error)[:200]}")
                continue
            row.setdefault("peers", []).append({"name": peer, "seconds": seconds, "ratio": seconds / row["seconds"]})
            print(f"{row['case']:<36} {row['seconds'] * 1e6:9.2f} us   {peer:<14} {seconds * 1e6:9.2f} us   {seconds / row['seconds']:.2f}x", flush=True)
    json.dump(results, open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
