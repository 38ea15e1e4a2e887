"""The published chunkwise Triton kernels of mLSTM as one torch operator.

An operator of its own, so that torch.compile neither traces into the kernels nor breaks the graph.
States are recomputed in the backward, as the package does by default; n and m are kept in fp32, which
costs nothing. The package (PyPI: mlstm-kernels, NXAI Community License) is used, not contained here.
"""
from typing import Tuple

import torch
from torch import Tensor, library

CHUNK = 128  # the backward of larger chunks is wrong in the package


def register():
    """Defines torch.ops.mlstm_bench.forward, once."""
    if hasattr(torch.ops.mlstm_bench, "forward"):
        return
    from mlstm_kernels.torch.chunkwise.triton_xl_chunk import bw, fw

    def forward(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, chunk: int, eps: float
                ) -> Tuple[Tensor, Tensor, Tensor]:
        h, n, m, _, _ = fw.mlstm_chunkwise_fw(
            matQ=q, matK=k, matV=v, vecI=i, vecF=f, qk_scale=q.shape[-1] ** -0.5, chunk_size=chunk, eps=eps,
            output_dtype=torch.float32)
        return h, n, m

    def gradients(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, n: Tensor, m: Tensor, dh: Tensor,
                  chunk: int, eps: float) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        r = bw.mlstm_chunkwise_bw(
            matQ=q, matK=k, matV=v, vecI=i, vecF=f, vecN_out=n, vecM_out=m, matDeltaH_out=dh,
            qk_scale=q.shape[-1] ** -0.5, chunk_size=chunk, eps=eps)
        return r[0], r[1], r[2], r[3].to(i.dtype), r[4].to(f.dtype)

    op = library.custom_op("mlstm_bench::forward", forward, mutates_args=())
    op_gradients = library.custom_op("mlstm_bench::gradients", gradients, mutates_args=())

    @op.register_fake
    def _(q, k, v, i, f, chunk, eps):
        B, N, S, _ = q.shape
        rows = [q.new_empty(B, N, S, dtype=torch.float32) for _ in range(2)]
        return (q.new_empty(B, N, S, v.shape[-1]), *rows)

    @op_gradients.register_fake
    def _(q, k, v, i, f, n, m, dh, chunk, eps):
        return tuple(t.new_empty(t.shape) for t in (q, k, v, i, f))

    def save(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:5], output[1], output[2])
        ctx.chunk, ctx.eps = inputs[5:]

    def backward(ctx, dh, dn, dm):
        g = torch.ops.mlstm_bench.gradients(*ctx.saved_tensors, dh.contiguous(), ctx.chunk, ctx.eps)
        return (*g, None, None)

    op.register_autograd(backward, setup_context=save)
