#!/usr/bin/env python3
"""Times training steps of SWAX in PyTorch on the GPUs of one host, sharded by FSDP2: one JSON line per
result on stdout.

Usage: torchrun --nproc-per-node N fsdp2.py [--model 1.4b|7b|tiny] [--reduce fp32|bf16] [--warm-caches]
                                           [--budget SECONDS] [--forms flex,fa2]
The model of model.py, each block compiled and a unit of fully_shard; so are the embedding, and norm with
head. Master weights, AdamW and its moments are fp32 and sharded, weights are gathered in bf16, gradients
reduced in fp32 (or bf16). One sequence of 16,384 random tokens a rank and step; gradients clipped to
norm 1. 1.4b keeps gathered weights until the backward pass; 7b gives them back and recomputes every
block. Medians of CUDA events over forward, backward and optimizer on rank 0. --warm-caches: as step.py.
"""
import argparse
import gc
import os
import statistics
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import mlstm_op
import model as peer
import step as single

START = time.time()


class Given:
    """What a block is called with beside x; outside the arguments that FSDP looks through."""
    ctx = None


class Unit(nn.Module):
    """A block as FSDP sees it: the compiled graph is inside, gathering outside."""

    def __init__(self, block, given, recompute):
        super().__init__()
        self.block, self.given, self.recompute = block, given, recompute

    def forward(self, x):
        ctx = self.given.ctx if self.block.attends else None
        if self.recompute:
            return checkpoint(self.block, x, ctx, use_reentrant=False, preserve_rng_state=False)
        return self.block(x, ctx)


class Ends(nn.Module):
    """Final norm, head and loss."""

    def __init__(self, net):
        super().__init__()
        self.norm, self.head, self.piece, self.chunk = net.norm, net.head, net.piece, net.c.loss_chunk

    def forward(self, x, targets):
        h = self.norm(x).reshape(-1, x.shape[-1])
        return peer.ChunkedLoss.apply(h, self.head.weight, targets.reshape(-1), min(self.chunk, h.shape[0]),
                                      self.piece)


class Sharded(nn.Module):
    def __init__(self, net, policy, keep, recompute):
        super().__init__()
        self.given, self.vocab, self.form, self.tables = Given(), net.c.vocab, "flex", None
        self.attention = [b.mix for b in net.blocks if b.attends]
        self.embed = net.embed
        self.units = nn.ModuleList([Unit(b, self.given, recompute) for b in net.blocks])
        self.ends = Ends(net)
        for unit in (self.embed, *self.units):
            fully_shard(unit, mp_policy=policy, reshard_after_forward=not keep)
        fully_shard(self.ends, mp_policy=policy, reshard_after_forward=False)
        fully_shard(self, mp_policy=policy, reshard_after_forward=False)

    def use_attention(self, form):
        for mix in self.attention:
            mix.form = form
        self.form = form

    def forward(self, tokens, targets, window):
        x = self.embed(tokens)
        length = x.shape[1]
        if self.tables is None or self.tables[0].shape[0] != length:
            self.tables = peer.rope_tables(length, x.device)
        mask = peer.block_mask(length, window, str(x.device)) if self.form == "flex" else None
        self.given.ctx = (*self.tables, mask, window)
        for unit in self.units:
            x = unit(x)
        return self.ends(x, targets)


def build(name, layers, reduce):
    mlstm_op.register()
    shape = peer.SHAPES[name] if layers is None else peer.replace(peer.SHAPES[name], layers=layers)
    with torch.device("cuda"):
        net = peer.Swax(shape)
    net.init_weights()
    net.compile_regions()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False,
                                  reduce_dtype=torch.float32 if reduce == "fp32" else torch.bfloat16)
    sharded = Sharded(net, policy, keep=name != "7b", recompute=name == "7b")
    wide = [p for p in sharded.parameters() if p.dim() > 1]
    flat = [p for p in sharded.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}], lr=1e-4,
                            betas=(0.9, 0.95), fused=True)
    return sharded, opt


def measure(net, opt, name, window, form, length, warm, steps, reduce):
    net.use_attention(form)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    data = single.tokens_of(net.vocab, length)
    params = list(net.parameters())

    def one(batch):
        loss = net(batch[:, :-1], batch[:, 1:], window)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss

    times, first, last = single.time_steps(one, data, warm, steps)
    if times and dist.get_rank() == 0:
        rate = length / statistics.median(times) * 1e3
        ranks = dist.get_world_size()
        single.emit(kind="fsdp2", model=name, window=window, attention=form, ranks=ranks, reduce=reduce,
                    tokens_s=round(ranks * rate), tokens_s_gpu=round(rate), **single.figures(times, first, last))


def past(budget):
    """Whether the time is over, as rank 0 sees it: all ranks must do the same."""
    over = torch.tensor([time.time() - START > budget], device="cuda")
    dist.broadcast(over, 0)
    return bool(over.item())


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="1.4b", choices=sorted(peer.SHAPES))
    ap.add_argument("--reduce", default="fp32", choices=("fp32", "bf16"))
    ap.add_argument("--forms", default="flex,fa2")
    ap.add_argument("--warm-caches", action="store_true")
    ap.add_argument("--budget", type=float, default=400.0, help="starts nothing after this many seconds")
    a = ap.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast objects of NVLink belong to the whole host
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    peer.configure_compiler()
    length, wide, narrow = (2048, 256, 128) if a.model == "tiny" else (16384, 2048, 128)
    warm, steps = (1, 0) if a.warm_caches else (2, 4) if a.model == "7b" else (4, 10)
    net, opt = build(a.model, 2 if a.warm_caches else None, a.reduce)
    done = 0
    for form in a.forms.split(","):
        for window in (wide, narrow):
            if past(a.budget):
                continue
            try:
                measure(net, opt, a.model, window, form, length, warm, steps, a.reduce)
                done += 1
            except Exception as error:  # the other ranks wait: nothing can follow
                traceback.print_exc()
                single.emit(kind="error", model=a.model, window=window, attention=form, error=repr(error)[:300])
                sys.stdout.flush()
                os._exit(1)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
