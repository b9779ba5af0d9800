#!/usr/bin/env python3
"""Times FlashInfer and PyTorch on the cases of `girih bench sampling --backend cuda` and puts them beside girih's rows.

    girih bench sampling --backend cuda --json ours.json
    bench/peers/sampling.py --results ours.json --json bench/results/h200/sampling.json

Run both on one machine, one after the other. The protocol is girih's: the call in a CUDA graph, 256 MB overwritten before each replay, the
median between events. A case that a peer does not do has no row of that peer. Ratio: the peer's seconds over girih's. Rows are drawn from
the same distributions, not the same numbers; a peer draws from its own random numbers.
"""

import argparse
import json
import math
import re

import torch
from rows import DEVICE, Clock, import_flashinfer

NAME = re.compile(
    r"(plain|top-p-renorm|top-p|top-k-top-p|top-k|min-p|logits-top-k-top-p|logits-top-p|softmax|values-of-(\d+))-(\d+)x(\d+)(?:-(.+))?"
)


def make_logits(rows, vocab, kind):
    """As make_rows() of tools/bench_sampling.cc."""
    n = torch.randn(rows, vocab, device=DEVICE)
    if kind is None:
        return n
    place = torch.arange(vocab, device=DEVICE).expand(rows, vocab)
    if kind == "uniform":
        return 0.1 * torch.randint(4096, (rows, vocab), device=DEVICE) / 4096
    if kind == "equal":
        return torch.full((rows, vocab), 0.5, device=DEVICE)
    if kind == "peak":
        return torch.where(place == vocab // 3, torch.tensor(30.0, device=DEVICE), n)
    if kind == "two-peaks":
        return torch.where(place % 2 == 0, 4.0, -4.0) + 0.001 * n
    if kind == "heavy-tail":
        return torch.where(n.abs() < 0.2, 5 * n, torch.copysign(1 / (0.3 + n.abs()), n) * 4)
    if kind == "mostly-inf":
        return torch.where(torch.rand(rows, vocab, device=DEVICE) < 0.01, n, torch.tensor(-math.inf, device=DEVICE))
    raise ValueError(kind)


def calls(case, flashinfer):
    """Pairs of a peer's name and its call."""
    match = NAME.fullmatch(case)
    if match is None:
        return
    name, k, rows, vocab = match[1], int(match[2] or 50), int(match[3]), int(match[4])
    logits = make_logits(rows, vocab, match[5])
    if name.startswith("values-of-"):
        if flashinfer:
            yield "flashinfer", lambda: flashinfer.top_k(logits, k)
        yield "torch", lambda: torch.topk(logits, k)
        return
    if name == "softmax":
        if flashinfer:
            yield "flashinfer", lambda: flashinfer.sampling.softmax(logits, temperature=0.8)
        yield "torch", lambda: torch.softmax(logits / 0.8, -1)
        compiled = torch.compile(lambda x: torch.softmax(x / 0.8, -1))
        yield "torch.compile", lambda: compiled(logits)
        return
    if name.startswith("logits"):  # FlashInfer has no penalties: without them
        if flashinfer and name == "logits-top-k-top-p":
            yield "flashinfer, no penalties", lambda: flashinfer.sampling.top_k_top_p_sampling_from_logits(logits / 0.8, 50, 0.9)
        if flashinfer and name == "logits-top-p":
            yield "flashinfer, no penalties", lambda: flashinfer.sampling.top_p_sampling_from_probs(
                flashinfer.sampling.softmax(logits, temperature=0.8), 0.9
            )
        return
    probs = torch.softmax(logits, -1)
    if flashinfer:
        s = flashinfer.sampling
        yield "flashinfer", {
            "plain": lambda: s.sampling_from_probs(probs),
            "top-p": lambda: s.top_p_sampling_from_probs(probs, 0.9),
            "top-k": lambda: s.top_k_sampling_from_probs(probs, 50),
            "min-p": lambda: s.min_p_sampling_from_probs(probs, 0.1),
            "top-k-top-p": lambda: s.top_k_top_p_sampling_from_probs(probs, 50, 0.9),
            "top-p-renorm": lambda: s.top_p_renorm_probs(probs, 0.9),
        }[name]
    if name == "plain":
        yield "torch", lambda: torch.multinomial(probs, 1)
    if name == "top-p" and match[5] is None:

        def by_sort():
            values, places = torch.sort(probs, descending=True)
            values = values * (values.cumsum(-1) - values < 0.9)
            return places.gather(1, torch.multinomial(values, 1))

        yield "torch", by_sort


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--preload", action="append", default=[])
    options = parser.parse_args()
    flashinfer = import_flashinfer(options.preload)
    results = json.load(open(options.results))
    clock = Clock()
    for library in ("flashinfer", "torch"):
        for row in results["rows"]:
            for peer, call in calls(row["case"], flashinfer):
                if not peer.startswith(library):
                    continue
                try:
                    seconds = clock(call, repeats=7)
                except Exception as error:  # one peer's failure does not lose the others
                    print(f"{row['case']:<36} {peer}: {str(error)[:200]}")
                    continue
                row.setdefault("peers", []).append({"name": peer, "seconds": seconds, "ratio": seconds / row["seconds"]})
                print(f"{row['case']:<36} {row['seconds'] * 1e6:9.2f} us   {peer:<24} {seconds * 1e6:9.2f} us   {seconds / row['seconds']:.2f}x", flush=True)
            with open(options.json, "w") as file:
                json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
