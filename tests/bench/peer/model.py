"""SWAX in PyTorch, as a user would train it without swax.

torch.compile by regions, flex_attention or FlashAttention-2, the published Triton mLSTM kernels,
fused AdamW on fp32 master weights, bf16 weights and activations. Even layers attend in a sliding
window, odd ones are mLSTM; each is followed by a SwiGLU feed-forward. Needs torch >= 2.11 and one GPU.
"""
import functools
import math
from dataclasses import dataclass, replace

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import mlstm_op

GATE_CAP = 15.0
EPS = 1e-6
HEAD_DIM = 128


@dataclass
class Shape:
    d: int
    layers: int
    mlstm_heads: int
    vocab: int = 50304
    loss_chunk: int = 8192

    @property
    def ffn(self):
        return math.ceil(8 * self.d / 3 / 256) * 256

    @property
    def qk(self):
        return self.d // 2


SHAPES = {
    "tiny": Shape(d=256, layers=4, mlstm_heads=2, vocab=512, loss_chunk=1024),
    "1.4b": Shape(d=2048, layers=24, mlstm_heads=4),
    "7b": Shape(d=4096, layers=32, mlstm_heads=8),
}


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        a = x.float()
        a = a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + EPS)
        return (a * self.weight.float()).to(x.dtype)


def rope_tables(length, device):
    j = torch.arange(0, HEAD_DIM // 2, device=device, dtype=torch.float64)
    angle = torch.arange(length, device=device, dtype=torch.float64)[:, None] * 10000.0 ** (-2.0 * j / HEAD_DIM)
    return angle.cos().float(), angle.sin().float()


def rope(x, cos, sin):
    """x (B, S, H, E), pairs are the two halves of a head."""
    h = x.shape[-1] // 2
    a, b = x[..., :h].float(), x[..., h:].float()
    c, s = cos[None, :, None, :], sin[None, :, None, :]
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(x.dtype)


@functools.lru_cache(maxsize=16)
def block_mask(length, window, device):
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(b, h, q, kv):
        return (q >= kv) & (q - kv < window)
    return create_block_mask(visible, None, None, length, length, device=device)


def attend_flex(q, k, v, mask):
    from torch.nn.attention.flex_attention import flex_attention
    return flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=mask).transpose(1, 2)


def attend_fa2(q, k, v, window):
    from torch.nn.attention.varlen import varlen_attn
    B, S, H, E = q.shape
    starts = torch.arange(0, (B + 1) * S, S, device=q.device, dtype=torch.int32)
    sides = (-1, 0) if window >= S else (window - 1, 0)
    return varlen_attn(q.reshape(B * S, H, E), k.reshape(B * S, H, E), v.reshape(B * S, H, E), starts, starts, S, S,
                       window_size=sides).view(B, S, H, E)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.form = "flex"
        self.wqkv = nn.Linear(c.d, 3 * c.d, bias=False)
        self.wo = nn.Linear(c.d, c.d, bias=False)

    def forward(self, y, ctx):
        B, S, d = y.shape
        cos, sin, mask, window = ctx
        q, k, v = self.wqkv(y).view(B, S, 3, d // HEAD_DIM, HEAD_DIM).unbind(2)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        o = attend_flex(q, k, v, mask) if self.form == "flex" else attend_fa2(q, k, v, window)
        return self.wo(o.reshape(B, S, d))


class MLSTM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wqkvo = nn.Linear(c.d, 2 * c.qk + 2 * c.d, bias=False)
        self.wif = nn.Linear(c.d, 2 * c.mlstm_heads, bias=True)
        self.norm_weight = nn.Parameter(torch.ones(c.d))
        self.wout = nn.Linear(c.d, c.d, bias=False)

    def forward(self, y, ctx):
        c, heads = self.c, self.c.mlstm_heads
        B, S, _ = y.shape
        q, k, v, o = self.wqkvo(y).split([c.qk, c.qk, c.d, c.d], dim=-1)
        gates = GATE_CAP * torch.tanh(self.wif(y).float() / GATE_CAP)
        i, f = gates.transpose(1, 2).split([heads, heads], dim=1)
        q, k, v = (t.reshape(B, S, heads, -1).transpose(1, 2).contiguous() for t in (q, k, v))
        h = torch.ops.mlstm_bench.forward(q, k, v, i.contiguous(), f.contiguous(), mlstm_op.CHUNK, EPS)[0]
        h = h.transpose(1, 2).float()
        h = h - h.mean(-1, keepdim=True)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
        h = h.reshape(B, S, -1) * self.norm_weight.float() * torch.sigmoid(o.float())
        return self.wout(h.to(y.dtype))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.w13 = nn.Linear(c.d, 2 * c.ffn, bias=False)
        self.w2 = nn.Linear(c.ffn, c.d, bias=False)

    def forward(self, y):
        g, u = self.w13(y).chunk(2, dim=-1)
        return self.w2(F.silu(g) * u)


class Block(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.attends = index % 2 == 0
        self.norm1, self.norm2 = RMSNorm(c.d), RMSNorm(c.d)
        self.mix = Attention(c) if self.attends else MLSTM(c)
        self.ff = FeedForward(c)

    def forward(self, x, ctx):
        x = x + self.mix(self.norm1(x), ctx)
        return x + self.ff(self.norm2(x))


def loss_piece(logits, targets, scale):
    """Loss sum * scale over one chunk of logits, and d(loss)/d(logits)."""
    z = logits.float()
    top = z.amax(-1, keepdim=True)
    e = torch.exp(z - top)
    s = e.sum(-1, keepdim=True)
    log_sum = (top + torch.log(s))[:, 0]
    loss = (log_sum - z.gather(-1, targets[:, None])[:, 0]).sum() * scale
    hot = torch.arange(z.shape[-1], device=z.device)[None, :] == targets[:, None]
    return loss, ((e / s - hot.to(z.dtype)) * scale).to(logits.dtype)


class ChunkedLoss(torch.autograd.Function):
    """Head + softmax cross entropy without the full logits: gradients are taken in the forward."""

    @staticmethod
    def forward(ctx, h, w, targets, chunk, piece):
        T = h.shape[0]
        dh, dw = torch.empty_like(h), None
        loss = torch.zeros((), device=h.device)
        for s in range(0, T, chunk):
            hc = h[s:s + chunk]
            part, dz = piece(hc @ w.t(), targets[s:s + chunk], 1.0 / T)
            loss = loss + part
            torch.mm(dz, w, out=dh[s:s + chunk])
            gw = torch.mm(dz.t(), hc)
            if dw is None:
                dw = gw.float() if chunk < T else gw
            else:
                dw += gw
            del dz, gw
        ctx.save_for_backward(dh, dw.to(w.dtype))
        return loss

    @staticmethod
    def backward(ctx, g):
        dh, dw = ctx.saved_tensors
        return dh * g.to(dh.dtype), dw * g.to(dw.dtype), None, None, None


class Swax(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.vocab, c.d)
        self.blocks = nn.ModuleList([Block(c, j) for j in range(c.layers)])
        self.norm = RMSNorm(c.d)
        self.head = nn.Linear(c.d, c.vocab, bias=False)
        self.recompute = False
        self.form = "flex"
        self.tables = None

    @torch.no_grad()
    def init_weights(self):
        g = torch.Generator(device=self.embed.weight.device)
        g.manual_seed(0)
        heads = self.c.mlstm_heads
        for name, p in self.named_parameters():
            if name.endswith("wif.bias"):
                p[:heads].fill_(-10.0)
                p[heads:].copy_(torch.linspace(3.0, 6.0, heads))
            elif name.endswith("wif.weight"):
                p.zero_()
            elif "norm" in name:
                p.fill_(1.0)
            else:
                narrow = name.endswith(("wo.weight", "wout.weight", "w2.weight"))
                p.normal_(0.0, 0.02 / math.sqrt(2 * self.c.layers) if narrow else 0.02, generator=g)

    def compile_regions(self):
        """One compiled graph per kind of block, shared by all layers."""
        for b in self.blocks:
            b.compile(dynamic=False, fullgraph=True)
        self.norm.compile(dynamic=False)
        self.piece = torch.compile(loss_piece, dynamic=False)

    def use_attention(self, form):
        for b in self.blocks:
            if b.attends:
                b.mix.form = form
        self.form = form

    def forward(self, tokens, targets, window):
        c = self.c
        B, S = tokens.shape
        x = F.embedding(tokens, self.embed.weight)
        if self.tables is None or self.tables[0].shape[0] != S:
            self.tables = rope_tables(S, x.device)
        mask = block_mask(S, window, str(x.device)) if self.form == "flex" else None
        ctx = (*self.tables, mask, window)
        for b in self.blocks:
            given = ctx if b.attends else None
            if self.recompute:
                x = checkpoint(b, x, given, use_reentrant=False, preserve_rng_state=False)
            else:
                x = b(x, given)
        h = self.norm(x).reshape(B * S, c.d)
        return ChunkedLoss.apply(h, self.head.weight, targets.reshape(-1), min(c.loss_chunk, B * S), self.piece)


class MasterAdamW:
    """Fused AdamW on fp32 master copies of bf16 parameters, group by group, so that fp32 gradients
    exist for one group at a time; gradients clipped to norm 1."""

    def __init__(self, groups):
        self.groups = []
        for params in groups:
            master = [p.detach().clone().float() for p in params]
            wide = [m for m in master if m.dim() > 1]
            flat = [m for m in master if m.dim() <= 1]
            sets = [{"params": s, "weight_decay": wd} for s, wd in ((wide, 0.1), (flat, 0.0)) if s]
            self.groups.append((params, master, torch.optim.AdamW(sets, lr=1e-4, betas=(0.9, 0.95), fused=True)))

    @torch.no_grad()
    def step(self):
        norms = torch._foreach_norm([p.grad for params, _, _ in self.groups for p in params])
        scale = torch.clamp(1.0 / (torch.stack(norms).float().norm() + 1e-6), max=1.0)
        for params, master, opt in self.groups:
            wide = [p.grad.float() for p in params]
            torch._foreach_mul_(wide, scale)
            for m, g in zip(master, wide):
                m.grad = g
            opt.step()
            for m in master:
                m.grad = None
            del wide
            torch._foreach_copy_(params, master)
            for p in params:
                p.grad = None


def configure_compiler():
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.accumulated_recompile_limit = 2048
    torch.set_float32_matmul_precision("high")


def build(name, layers=None):
    """Model and optimizer of one of SHAPES on the current GPU, with fewer layers if asked."""
    mlstm_op.register()
    shape = replace(SHAPES[name], layers=layers or SHAPES[name].layers)
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = Swax(shape)
    finally:
        torch.set_default_dtype(old)
    model.init_weights()
    groups = [[model.embed.weight]] + [list(b.parameters()) for b in model.blocks]
    groups.append([*model.norm.parameters(), model.head.weight])
    return model, MasterAdamW(groups)
