#!/usr/bin/env python3
"""Times training steps of SWAX in PyTorch: one JSON line per result on stdout.

Usage: step.py [--model 1.4b|7b|tiny] [--warm-caches] [--budget SECONDS]
One sequence of 16,384 random tokens a step, both windows (2048 and 128), both attention operators;
medians of CUDA events over forward, backward and optimizer. 7b recomputes every block, as it must on
one card. --warm-caches runs each once with two layers, which fills the compilers' disk caches (regions
are compiled per block, so their graphs are those of the whole model); no times then.
"""
import argparse
import gc
import json
import statistics
import sys
import time
import traceback

import torch

import model as peer

START = time.time()


def emit(**fields):
    print(json.dumps(dict(fields, t=round(time.time() - START, 1))), flush=True)


def tokens_of(vocab, length):
    """Four batches, skewed as text is."""
    g = torch.Generator(device="cuda")
    g.manual_seed(1)
    u = [torch.rand(1, length + 1, device="cuda", generator=g) for _ in range(4)]
    return [(x.pow(3) * vocab).long().clamp_(0, vocab - 1) for x in u]


def time_steps(one, data, warm, steps):
    """Calls one(tokens) warm + steps times. Times in ms of the latter, and the first and last loss."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(warm + steps)]
    losses = []
    for n, (begin, end) in enumerate(events):
        begin.record()
        loss = one(data[n % len(data)])
        end.record()
        losses.append(loss.detach())
        if n < warm or n % 4 == 3:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    first, last = float(losses[0]), float(losses[-1])
    if not (0.0 < first < 100.0 and 0.0 < last < 100.0):
        raise RuntimeError(f"losses {first} and {last}: this is no training")
    return [a.elapsed_time(b) for a, b in events[warm:]], first, last


def figures(times, first, last):
    """What every result says of its steps."""
    return dict(ms=round(statistics.median(times), 2), fastest=round(min(times), 2), slowest=round(max(times), 2),
                loss_first=round(first, 4), loss_last=round(last, 4),
                peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2))


def measure(net, opt, name, window, form, length, warm, steps):
    net.use_attention(form)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    data = tokens_of(net.c.vocab, length)

    def one(batch):
        loss = net(batch[:, :-1], batch[:, 1:], window)
        loss.backward()
        opt.step()
        return loss

    times, first, last = time_steps(one, data, warm, steps)
    if times:
        emit(kind="step", model=name, window=window, attention=form,
             tokens_s=round(length / statistics.median(times) * 1e3), **figures(times, first, last))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="1.4b", choices=sorted(peer.SHAPES))
    ap.add_argument("--warm-caches", action="store_true")
    ap.add_argument("--budget", type=float, default=400.0, help="starts nothing after this many seconds")
    a = ap.parse_args()
    peer.configure_compiler()
    length, wide, narrow = (2048, 256, 128) if a.model == "tiny" else (16384, 2048, 128)
    warm, steps = (1, 0) if a.warm_caches else (2, 4) if a.model == "7b" else (4, 10)
    net, opt = peer.build(a.model, layers=2 if a.warm_caches else None)
    net.recompute = a.model == "7b"
    net.compile_regions()
    failed = 0
    for form, window in (("flex", wide), ("flex", narrow), ("fa2", wide), ("fa2", narrow)):
        if time.time() - START > a.budget:
            emit(kind="skipped", model=a.model, window=window, attention=form)
            continue
        try:
            measure(net, opt, a.model, window, form, length, warm, steps)
        except Exception as error:  # one form may be unsupported: the other still counts
            failed += 1
            traceback.print_exc()
            emit(kind="error", model=a.model, window=window, attention=form, error=repr(error)[:300])
            for p in net.parameters():
                p.grad = None
    return 1 if failed == 4 else 0


if __name__ == "__main__":
    sys.exit(main())
