#!/usr/bin/env python3
"""Times the operators that a PyTorch user would take: one JSON line per result on stdout.

Usage: kernels.py [--warm-caches]
Attention 16 heads x 128 (flex_attention, FlashAttention-2), mLSTM 4 x (256/512) (Triton, untuned and
with the tuning that is fastest here), head + loss of 16,384 tokens over 50,304 words, a copy. Forward
and forward + backward on fresh random inputs, median of CUDA events.
"""
import argparse
import json
import statistics
import sys
import time
import traceback

import torch

import model as peer

T, D, V = 16384, 2048, 50304
WARM_ONLY = False


def randn(*shape, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def median_ms(run, sets, repeats=15):
    """A short spin kernel goes before each call, so that the host's launches do not show."""
    for j in range(1 if WARM_ONLY else 3):
        run(sets[j % len(sets)])
    torch.cuda.synchronize()
    if WARM_ONLY:
        return None
    began = time.time()
    run(sets[0])
    torch.cuda.synchronize()
    spin = int(min(max(time.time() - began, 3e-4), 3e-3) * 1.9e9)
    events = []
    for j in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(spin)
        begin.record()
        run(sets[j % len(sets)])
        end.record()
        events.append((begin, end))
        if j % 4 == 3:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in events)


def report(what, form, forward, both):
    if both is not None:
        print(json.dumps(dict(kind="kernel", what=what, form=form, forward_ms=forward and round(forward, 4),
                              ms=round(both, 4))), flush=True)


def time_both(what, form, f, make):
    """make() -> (inputs, gradient of the output); f(*inputs) -> output."""
    try:
        sets = [make() for _ in range(2)]

        def forward(s):
            with torch.no_grad():
                f(*s[0])
        first = median_ms(forward, sets)
        sets = [(tuple(x.detach().requires_grad_(True) for x in xs), dy) for xs, dy in sets]
        both = median_ms(lambda s: torch.autograd.grad(f(*s[0]), s[0], s[1]), sets)
        report(what, form, first, both)
    except Exception as error:  # one form may be unsupported: the others still count
        traceback.print_exc()
        print(json.dumps(dict(kind="error", what=what, form=form, error=repr(error)[:300])), flush=True)


def attention():
    from torch.nn.attention.flex_attention import flex_attention
    flex = torch.compile(flex_attention, dynamic=False)
    for window in (2048, 128):
        def heads_first():
            q, k, v, do = (randn(1, T, 16, 128).transpose(1, 2) for _ in range(4))
            return (q, k, v), do

        def rows():
            q, k, v, do = (randn(1, T, 16, 128) for _ in range(4))
            return (q, k, v), do
        mask = peer.block_mask(T, window, "cuda")
        time_both(f"swa w{window}", "flex", lambda q, k, v: flex(q, k, v, block_mask=mask), heads_first)
        time_both(f"swa w{window}", "fa2", lambda q, k, v: peer.attend_fa2(q, k, v, window), rows)


def mlstm():
    from mlstm_kernels.torch import get_mlstm_kernel
    kernel = get_mlstm_kernel("chunkwise--triton_xl_chunk")
    heads, dk, dv = 4, 256, 512

    def make():
        q, k, v, dh = (randn(1, heads, T, n) for n in (dk, dk, dv, dv))
        i = randn(1, heads, T, dtype=torch.float32)
        return (q, k, v, i, randn(1, heads, T, dtype=torch.float32) + 4.0), dh
    for form, tuning in (("chunk 128", {}), ("chunk 128, 2 stages", dict(num_stages_intra=2, num_stages_inter=2))):
        time_both("mlstm 4x(256/512)", form,
                  lambda q, k, v, i, f: kernel(q, k, v, i, f, chunk_size=128, autocast_kernel_dtype=torch.bfloat16,
                                               **tuning), make)


def loss():
    targets = torch.randint(0, V, (T,), device="cuda")
    piece = torch.compile(peer.loss_piece, dynamic=False)
    whole = torch.compile(lambda h, w: torch.nn.functional.cross_entropy((h @ w.t()).float(), targets), dynamic=False)
    forms = {f"chunks of {n}": (lambda h, w, n=n: peer.ChunkedLoss.apply(h, w, targets, n, piece))
             for n in (8192, 16384)}
    for form, f in dict(forms, compiled=whole).items():
        sets = [(randn(T, D).requires_grad_(True), randn(V, D, scale=0.02).requires_grad_(True)) for _ in range(2)]
        report("head + loss", form, None, median_ms(lambda s: torch.autograd.grad(f(*s), s), sets, repeats=8))
        del sets
        torch.cuda.empty_cache()


def copy():
    a = torch.randn(1 << 29, device="cuda")
    b = torch.empty_like(a)
    report("copy of 2 GiB", "torch", None, median_ms(lambda s: b.copy_(a), [0], repeats=10))


def main():
    global WARM_ONLY
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--warm-caches", action="store_true")
    WARM_ONLY = ap.parse_args().warm_caches
    peer.configure_compiler()
    for section in (copy, attention, mlstm, loss):
        try:
            section()
        except Exception as error:
            traceback.print_exc()
            print(json.dumps(dict(kind="error", what=section.__name__, error=repr(error)[:300])), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
