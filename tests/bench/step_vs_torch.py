#!/usr/bin/env python3
"""One training step of swax on the CPU beside the same model in eager PyTorch: one rank, one thread each,
the same shape, in turns in one run.

usage: step_vs_torch.py --bin FOLDER [--job JOB.toml] [--steps N] [--venv FOLDER]

PyTorch comes from PyPI into the venv (default build/torch-venv) on the first call. The PyTorch side does
a little less: it knows no document borders. Prints tokens/s of both and the ratio, for the long and the
short attention window.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import tomllib

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WARM_STEPS = 3


def enter_venv(folder):
    """Goes on in the venv's python, which is made here when it has no torch."""
    python = os.path.join(folder, "bin", "python")
    if os.path.realpath(sys.prefix) == os.path.realpath(folder):
        return
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode \
            if os.path.exists(python) else True:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "torch", "numpy"], check=True)
    os.execv(python, [python, *sys.argv])


def build_model(m, torch):
    """The model of worker/model in plain torch modules, batch first."""
    from torch import nn
    functional = nn.functional

    class RmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(m["dim"]))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.size = m["heads"], m["head_dim"]
            groups = m.get("kv_heads", 0) or self.heads
            self.groups = groups
            self.wq = nn.Linear(m["dim"], self.heads * self.size, bias=False)
            self.wk = nn.Linear(m["dim"], groups * self.size, bias=False)
            self.wv = nn.Linear(m["dim"], groups * self.size, bias=False)
            self.wo = nn.Linear(self.heads * self.size, m["dim"], bias=False)

        def rope(self, x, tables):
            cos, sin = tables
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        def forward(self, x, mask, tables):
            batch, tokens, _ = x.shape

            def split(y, heads):
                return y.view(batch, tokens, heads, self.size).transpose(1, 2)

            q = self.rope(split(self.wq(x), self.heads), tables)
            k = self.rope(split(self.wk(x), self.groups), tables)
            v = split(self.wv(x), self.groups)
            if self.groups != self.heads:
                k = k.repeat_interleave(self.heads // self.groups, 1)
                v = v.repeat_interleave(self.heads // self.groups, 1)
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.wo(y.transpose(1, 2).reshape(batch, tokens, -1))

    class Mlstm(nn.Module):
        """Chunkwise form: states between chunks in a loop, everything else for all chunks at once."""

        def __init__(self):
            super().__init__()
            self.heads, self.qk, self.v = m["mlstm_heads"], m["mlstm_qk_dim"], m["mlstm_v_dim"]
            self.chunk = m["mlstm_chunk"]
            self.wq = nn.Linear(m["dim"], self.heads * self.qk, bias=False)
            self.wk = nn.Linear(m["dim"], self.heads * self.qk, bias=False)
            self.wv = nn.Linear(m["dim"], self.heads * self.v, bias=False)
            self.wo_gate = nn.Linear(m["dim"], self.heads * self.v, bias=False)
            self.wi, self.wf = nn.Linear(m["dim"], self.heads), nn.Linear(m["dim"], self.heads)
            nn.init.zeros_(self.wi.weight)
            nn.init.zeros_(self.wf.weight)
            nn.init.constant_(self.wi.bias, -10.0)
            with torch.no_grad():
                self.wf.bias.copy_(torch.linspace(3.0, 6.0, self.heads))
            self.norm = nn.Parameter(torch.ones(self.heads * self.v))
            self.w_out = nn.Linear(self.heads * self.v, m["dim"], bias=False)

        def chunks(self, x, size):
            batch, tokens, _ = x.shape
            x = x.view(batch, tokens // self.chunk, self.chunk, self.heads, size)
            return x.permute(0, 3, 1, 2, 4)  # batch, head, chunk, token, size

        def states(self, k, v, i, log_f):
            """C, n and their scale m at the beginning of each chunk."""
            total = log_f[..., -1]
            gain = total[..., None] - log_f + i
            gain_max = gain.amax(-1).detach()
            c = k.new_zeros(*k.shape[:2], self.qk, self.v)
            n = k.new_zeros(*k.shape[:2], self.qk)
            scale = torch.zeros_like(total[:, :, 0])
            out = []
            for t in range(k.shape[2]):
                out.append((c, n, scale))
                new = torch.maximum(total[:, :, t] + scale, gain_max[:, :, t]).detach()
                keep = torch.exp(total[:, :, t] + scale - new)
                weighted = k[:, :, t] * torch.exp(gain[:, :, t] - new[..., None])[..., None]
                c = keep[..., None, None] * c + weighted.transpose(-1, -2) @ v[:, :, t]
                n = keep[..., None] * n + weighted.sum(-2)
                scale = new
            return (torch.stack(column, 2) for column in zip(*out))

        def forward(self, x):
            batch, tokens, _ = x.shape
            q = self.chunks(self.wq(x), self.qk) * self.qk ** -0.5
            k, v = self.chunks(self.wk(x), self.qk), self.chunks(self.wv(x), self.v)
            i = self.chunks(15.0 * torch.tanh(self.wi(x) / 15.0), 1)[..., 0]
            f = self.chunks(15.0 * torch.tanh(self.wf(x) / 15.0), 1)[..., 0]
            log_f = functional.logsigmoid(f).cumsum(-1)
            c, n, scale = self.states(k, v, i, log_f)
            inside = log_f[..., :, None] - log_f[..., None, :] + i[..., None, :]
            causal = torch.ones(self.chunk, self.chunk, dtype=torch.bool).tril()
            inside = inside.masked_fill(~causal, float("-inf"))
            before = log_f + scale[..., None]
            top = torch.maximum(inside.amax(-1), before).detach()
            scores = (q @ k.transpose(-1, -2)) * torch.exp(inside - top[..., None])
            carry = torch.exp(before - top)[..., None]
            h = scores @ v + carry * (q @ c)
            den = scores.sum(-1, keepdim=True) + carry * (q @ n[..., None])
            h = h / torch.maximum(den.abs(), torch.exp(-top)[..., None])
            h = h.permute(0, 2, 3, 1, 4).reshape(batch, tokens, self.heads, self.v)
            h = functional.layer_norm(h, (self.v,), eps=1e-6).reshape(batch, tokens, -1)
            return self.w_out(h * self.norm * torch.sigmoid(self.wo_gate(x)))

    class Layer(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.kind = kind
            self.mixer = Attention() if kind == "S" else Mlstm()
            self.norm_mix, self.norm_mlp = RmsNorm(), RmsNorm()
            self.w_gate = nn.Linear(m["dim"], m["ff_dim"], bias=False)
            self.w_up = nn.Linear(m["dim"], m["ff_dim"], bias=False)
            self.w_down = nn.Linear(m["ff_dim"], m["dim"], bias=False)

        def forward(self, x, mask, tables):
            y = self.norm_mix(x)
            x = x + (self.mixer(y, mask, tables) if self.kind == "S" else self.mixer(y))
            y = self.norm_mlp(x)
            return x + self.w_down(functional.silu(self.w_gate(y)) * self.w_up(y))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(m["vocab_size"], m["dim"])
            pattern = m.get("pattern", "SM")
            self.layers = nn.ModuleList(Layer(pattern[i % len(pattern)]) for i in range(m["layers"]))
            self.norm = RmsNorm()
            self.head = nn.Linear(m["dim"], m["vocab_size"], bias=False)

        def forward(self, tokens, targets, mask, tables):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x, mask, tables)
            logits = 30.0 * torch.tanh(self.head(self.norm(x)) / 30.0)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Model()


def torch_rate(job, window, steps, torch):
    """Median tokens/s of a step, and the number of parameters."""
    torch.manual_seed(1)
    m, training = job["model"], job["training"]
    tokens, batch = training["seq_len"], training["global_batch_size"]
    model = build_model(m, torch)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=job["optimizer"]["lr"], betas=(0.9, 0.95), eps=1e-8)
    at = torch.arange(tokens)
    back = at[:, None] - at[None, :]
    mask = (back >= 0) & (back < window)
    pairs = torch.arange(m["head_dim"] // 2, dtype=torch.float64)
    angle = at[:, None].double() * 10000.0 ** (-2.0 * pairs / m["head_dim"])
    tables = (angle.cos().float(), angle.sin().float())
    times = []
    for _ in range(steps):
        text = torch.randint(0, 256, (batch, tokens + 1))
        begin = time.perf_counter()
        loss = model(text[:, :-1], text[:, 1:], mask, tables)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_norm"])
        optimizer.step()
        if not torch.isfinite(loss):
            sys.exit("step_vs_torch: loss is not finite")
        times.append(time.perf_counter() - begin)
    parameters = sum(p.numel() for p in model.parameters())
    return batch * tokens / statistics.median(times[WARM_STEPS:]), parameters


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True, help="folder of step_bench")
    parser.add_argument("--job", default=os.path.join(SOURCE, "jobs", "quickstart.toml"))
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--venv", default=os.path.join(SOURCE, "build", "torch-venv"))
    words = parser.parse_args()
    if words.steps <= WARM_STEPS:
        parser.error(f"--steps must be above {WARM_STEPS}")
    enter_venv(words.venv)
    import torch
    torch.set_num_threads(1)
    with open(words.job, "rb") as file:
        job = tomllib.load(file)
    rates = {("swax", "long"): [], ("swax", "short"): [], ("torch", "long"): [], ("torch", "short"): []}
    for _ in range(words.rounds):  # in turns: both meet the same machine
        done = subprocess.run([os.path.join(words.bin, "step_bench"), words.job, str(words.steps)],
                              stdout=subprocess.PIPE, check=True, text=True)
        ours = json.loads(done.stdout)
        for window in ("long", "short"):
            rate, parameters = torch_rate(job, job["window"][window], words.steps, torch)
            if parameters != ours["parameters"]:
                sys.exit(f"step_vs_torch: {parameters} parameters, swax has {ours['parameters']}")
            rates["torch", window].append(rate)
            rates["swax", window].append(ours[window])
    print(f"torch {torch.__version__}, eager, 1 thread; {parameters} parameters, "
          f"{ours['tokens_per_step']} tokens a step; medians of {words.rounds} rounds")
    for window in ("long", "short"):
        swax = statistics.median(rates["swax", window])
        other = statistics.median(rates["torch", window])
        print(f"{window:<6} window {job['window'][window]:>4}   swax {swax:8.0f} tokens/s   "
              f"torch {other:8.0f} tokens/s   ratio {swax / other:.2f}")


if __name__ == "__main__":
    main()
