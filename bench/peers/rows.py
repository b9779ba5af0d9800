#!/usr/bin/env python3
"""Times FlashInfer and PyTorch on the cases of `girih bench norm|activation|rope|page|quant --backend cuda` and puts them beside girih's.

    girih bench norm --backend cuda --json ours.json
    bench/peers/rows.py --results ours.json --json bench/results/h200/norm.json

Run both on one machine, one after the other. The protocol is girih's: the call in a CUDA graph, 256 MB overwritten before each replay, the
median between events. A case that a peer does not do has no row of that peer. Ratio: the peer's seconds over girih's. --warm calls each peer
once, so that what compiles lies in its caches before anything is timed.
"""

import argparse
import fnmatch
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


def positions_of(rows):
    return torch.arange(rows, dtype=torch.int64, device=DEVICE)


def compiled(function):
    """Compiled at its first call, for the shapes of that."""
    made = []

    def call(*tensors):
        if not made:
            made.append(torch.compile(function, dynamic=False))
        return made[0](*tensors)

    return call


def quantised(x, scaling):
    """PyTorch's way to e4m3 codes: divided by a given scale or by the largest of a row or of 128 elements."""
    x = x.float()
    if scaling == "tensor":
        return (x / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn), None
    groups = x.unflatten(-1, (-1, 128)) if scaling == "block" else x
    scale = groups.abs().amax(-1, keepdim=True) / 448
    return (groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn).view(x.shape), scale.squeeze(-1)


# Each of these yields pairs of a peer's name and its call; none where no peer does the case.


def norm_calls(name, rows, flashinfer):
    match = re.fullmatch(r"(add_)?(rms|layer|qk_rms)_(\d+x)?(\d+)(_e4m3_\w+)?", name)
    if not match:
        return
    add, layer, dim, scaling = bool(match[1]), match[2] == "layer", int(match[4]), (match[5] or "")[6:]
    shape = (rows, int(match[3][:-1]), dim) if match[3] else (rows, dim)
    x, r, w, out = bf16(*shape), bf16(*shape), bf16(dim), bf16(*shape)

    def plain(x, r, w):
        total = x + r if add else x
        normal = torch.nn.functional.layer_norm(total, (dim,), w, w, 1e-6) if layer else torch.nn.functional.rms_norm(total, (dim,), w, 1e-6)
        made = quantised(normal, scaling) if scaling else (normal,)
        return (total, *made) if add else made

    if flashinfer and scaling == "tensor" and not add:
        codes = torch.empty(rows, dim, dtype=torch.float8_e4m3fn, device=DEVICE)
        scale = torch.tensor([0.02], device=DEVICE)
        yield "flashinfer", lambda: flashinfer.norm.rmsnorm_quant(codes, x, w, scale, 1e-6)
    elif flashinfer and not scaling and layer:
        gamma, beta = w.float(), w.float()
        yield "flashinfer", lambda: flashinfer.layernorm(x, gamma, beta, 1e-6)
    elif flashinfer and not scaling and add:
        yield "flashinfer", lambda: flashinfer.fused_add_rmsnorm(x, r, w, 1e-6)
    elif flashinfer and not scaling:
        yield "flashinfer", lambda: flashinfer.rmsnorm(x, w, 1e-6, out=out)
    fused = compiled(plain)
    yield "torch.compile", lambda: fused(x, r, w)
    yield "torch", lambda: plain(x, r, w)


def activation_calls(name, rows, flashinfer):
    match = re.fullmatch(r"(silu|gelu|gelu_tanh|swigluoai)_(\d+)(_e4m3_\w+)?", name)
    if not match:
        return
    kind, dim, scaling = match[1], int(match[2]), (match[3] or "")[6:]
    x, out = bf16(rows, 2 * dim), bf16(rows, dim)
    functional = torch.nn.functional

    def plain(x):
        if kind == "swigluoai":
            gate, up = x[:, ::2].clamp(max=7), x[:, 1::2].clamp(-7, 7)
            y = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        else:
            gate, up = x[:, :dim], x[:, dim:]
            y = (functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none")) * up
        return quantised(y, scaling) if scaling else y

    if flashinfer and not scaling and kind != "swigluoai":
        call = {"silu": flashinfer.silu_and_mul, "gelu": flashinfer.gelu_and_mul, "gelu_tanh": flashinfer.gelu_tanh_and_mul}[kind]
        yield "flashinfer", lambda: call(x, out=out)
    fused = compiled(plain)
    yield "torch.compile", lambda: fused(x)
    yield "torch", lambda: plain(x)


class Cache:
    """Pages of 16 tokens; `rows` new tokens in equal shares of `requests` lists that hold nothing else, as the cases have it."""

    def __init__(self, rows, requests):
        counts = [rows * (r + 1) // requests - rows * r // requests for r in range(requests)]
        pages = [-(-count // 16) for count in counts]
        self.num_pages = sum(pages)
        integers = {"dtype": torch.int32, "device": DEVICE}
        self.indices = torch.arange(self.num_pages, **integers).flip(0).contiguous()
        self.indptr = torch.tensor([sum(pages[:r]) for r in range(requests + 1)], **integers)
        self.last = torch.tensor([(count - 1) % 16 + 1 for count in counts], **integers)
        self.requests = torch.tensor([r for r, count in enumerate(counts) for _ in range(count)], **integers)
        self.positions = torch.tensor([i for count in counts for i in range(count)], **integers)

    def plane(self, *shape, dtype=torch.bfloat16):
        return torch.zeros(self.num_pages, 16, *shape, dtype=dtype, device=DEVICE)

    def slots(self):
        page = self.indices[self.indptr[self.requests] + self.positions // 16].long()
        return page * 16 + self.positions % 16


def rope_calls(name, rows, flashinfer):
    match = re.fullmatch(r"rope_(interleaved_|append_e4m3_|append_)?(\d+)x(\d+)x(\d+)", name)
    if not match:
        return
    kind, heads, kv_heads, dim = match[1] or "", int(match[2]), int(match[3]), int(match[4])
    q, k, v = bf16(rows, heads, dim), bf16(rows, kv_heads, dim), bf16(rows, kv_heads, dim)
    flat_q, flat_k = q.view(rows, -1), k.view(rows, -1)
    table = torch.randn(max(rows, 16), dim, device=DEVICE)
    positions = positions_of(rows)
    neox = kind != "interleaved_"
    cache = Cache(rows, 1)

    def rotate():
        flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(positions, flat_q, flat_k, dim, table, neox)

    def append():
        flashinfer.append_paged_kv_cache(k, v, cache.requests, cache.positions, planes, cache.indices, cache.indptr, cache.last)

    if flashinfer and kind == "append_":
        planes = (cache.plane(kv_heads, dim), cache.plane(kv_heads, dim))
        yield "flashinfer, two calls", lambda: (rotate(), append())
    elif flashinfer and kind == "append_e4m3_":
        codes = {"dtype": torch.float8_e4m3fn}
        planes = (cache.plane(kv_heads, dim, **codes), cache.plane(kv_heads, dim, **codes))
        out = torch.empty(rows, heads, dim, device=DEVICE, **codes)
        none_q, none_k = q[..., :0], k[..., :0]
        yield "flashinfer, q as e4m3 too", lambda: flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
            q, k, none_q, none_k, v, table, positions.int(), planes, cache.indices, cache.indptr, cache.requests, cache.positions,
            is_neox=True, quantize_dtype=torch.float8_e4m3fn, page_size=16, q_rope_out=out, q_nope_out=out[..., :0])
    elif flashinfer:
        yield "flashinfer", rotate
        if neox:
            yield "flashinfer, no table", lambda: flashinfer.rope.apply_rope_pos_ids_inplace(q, k, positions.int())
    if kind in ("", "interleaved_"):

        def plain(q, k):
            cos, sin = (t.unsqueeze(1) for t in table[positions].chunk(2, -1))
            made = []
            for x in (q, k):
                a, b = (x[..., : dim // 2], x[..., dim // 2 :]) if neox else (x[..., ::2], x[..., 1::2])
                turned = (a * cos - b * sin, a * sin + b * cos)
                made.append((torch.cat(turned, -1) if neox else torch.stack(turned, -1).flatten(-2)).to(x.dtype))
            return made

        fused = compiled(plain)
        yield "torch.compile", lambda: fused(q, k)


def page_calls(name, rows, flashinfer):
    cache = Cache(rows, min(rows, 64))
    if name == "append_8x128":
        k, v = bf16(rows, 8, 128), bf16(rows, 8, 128)
        planes = (cache.plane(8, 128), cache.plane(8, 128))
        if flashinfer:
            yield "flashinfer", lambda: flashinfer.append_paged_kv_cache(
                k, v, cache.requests, cache.positions, planes, cache.indices, cache.indptr, cache.last)
        slots, flat = cache.slots(), [p.view(-1, 8, 128) for p in planes]
        yield "torch", lambda: (flat[0].index_copy_(0, slots, k), flat[1].index_copy_(0, slots, v))
    elif name == "append_mla" and flashinfer:
        k, r, ckv, kpe = bf16(rows, 512), bf16(rows, 64), cache.plane(512), cache.plane(64)
        yield "flashinfer", lambda: flashinfer.page.append_paged_mla_kv_cache(
            k, r, cache.requests, cache.positions, ckv, kpe, cache.indices, cache.indptr, cache.last)
    elif name == "copy_pages_8x128":
        count = -(-rows // 16)
        pool = [bf16(2 * count, 16, 8, 128) for _ in range(2)]
        source = torch.arange(count, device=DEVICE)
        target = 2 * count - 1 - source
        yield "torch", lambda: [p.index_copy_(0, target, p.index_select(0, source)) for p in pool]


def quant_calls(name, rows, flashinfer):
    dim = 4096
    match = re.fullmatch(r"e4m3_(tensor|token|block)", name)
    if match:
        x, scaling = bf16(rows, dim), match[1]
        fused = compiled(lambda x: quantised(x, scaling))
        yield "torch.compile", lambda: fused(x)
        yield "torch", lambda: quantised(x, scaling)
    elif name in ("nvfp4", "mxfp4") and flashinfer:
        x, one = bf16(rows, dim), torch.ones(1, device=DEVICE)
        mx = name == "mxfp4"
        yield "flashinfer", lambda: flashinfer.fp4_quantize(
            x, one, sf_vec_size=32 if mx else 16, sf_use_ue8m0=mx, is_sf_swizzled_layout=False)
    elif name == "from_e4m3_block":
        codes, scales = bf16(rows, dim).to(torch.float8_e4m3fn), torch.ones(rows, dim // 128, device=DEVICE)
        fused = compiled(lambda c, s: (c.float().unflatten(-1, (-1, 128)) * s.unsqueeze(-1)).flatten(-2).bfloat16())
        yield "torch.compile", lambda: fused(codes, scales)


def import_flashinfer(preload):
    """The module, or None where it is not installed. `preload`: modules that come first."""
    for module in preload:
        importlib.import_module(module)
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        print("flashinfer: not here:", error)
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("--peers", default="flashinfer,torch.compile,torch", help="first words of the names of those that are timed")
    parser.add_argument("--cases", default="*", help="only cases that match one of these patterns with * and ?, separated by commas")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--warm", action="store_true")
    options = parser.parse_args()
    flashinfer = import_flashinfer(options.preload)
    results = json.load(open(options.results))
    clock = Clock()
    for row in results["rows"]:
        name, rows = re.fullmatch(r"(.+)_r(\d+)", row["case"]).groups()
        if not any(fnmatch.fnmatchcase(row["case"], pattern) for pattern in options.cases.split(",")):
            continue
        calls = {"norm": norm_calls, "activation": activation_calls, "rope": rope_calls, "page": page_calls, "quant": quant_calls}[row["op"]]
        for peer, call in calls(name, int(rows), flashinfer):
            if peer.split(",")[0] not in options.peers.split(","):
                continue
            try:
                if options.warm:
                    call()
                    continue
                seconds = clock(call, options.repeats)
            except Exception as error:  # one peer's failure does not lose the others
                print(f"{row['case']:<36} {peer}: {str(error)[:200]}")
                continue
            row.setdefault("peers", []).append({"name": peer, "seconds": seconds, "ratio": seconds / row["seconds"]})
            print(f"{row['case']:<36} {row['seconds'] * 1e6:9.2f} us   {peer:<14} {seconds * 1e6:9.2f} us   {seconds / row['seconds']:.2f}x", flush=True)
    json.dump(results, open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
