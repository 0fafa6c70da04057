"""Small recurrent mixers in plain torch, written from the papers alone: scans token by token, nothing of them a product."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from projector.workload.layer_kinds import KimiDelta, Mamba1, Mamba2, SharedBlock
from projector.workload.model import Model
from tests.projector.layers.torch_norms import RMSNorm, _Flash, in_one_kernel, rotate


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Causal, of each channel of [b, s, d] alone, then SiLU; by shifts, so that it counts no product."""
    taps = weight.shape[-1]
    wide = functional.pad(x, (0, 0, taps - 1, 0))
    out = sum(wide[:, i : i + x.shape[1]] * weight[:, i] for i in range(taps))
    return functional.silu(out if bias is None else out + bias)  # type: ignore[arg-type]


def _selective(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Selective scan of [b, s, d] with a state of N for each channel (arXiv:2312.00752, algorithm 2)."""
    step = functional.softplus(delta.float())
    state, found = torch.zeros(*u.shape[::2], a.shape[-1]), []
    for t in range(u.shape[1]):
        now = step[:, t, :, None]
        state = (now * -a.float().exp()).exp() * state + now * b[:, t, None] * u[:, t, :, None]
        found.append((state * c[:, t, None]).sum(-1))
    return (torch.stack(found, 1) + d * u).to(u.dtype)


def _scan(z: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
    """The scan with its gate, and before it."""
    y = _selective(*given)
    return y * functional.silu(z), y


class _Inner(torch.autograd.Function):
    """All of a Mamba-1 mixer after its first projection: it saves that projection's output, the narrow one and the scan's
    output before its gate, and makes the rest again."""

    @staticmethod
    def forward(ctx: Any, xz: Tensor, narrow: Tensor, wide: Tensor, bias: Tensor, out: Tensor, *more: Tensor) -> Tensor:
        weight, conv_bias, a, d = more
        x, z = xz.chunk(2, -1)
        u = _convolved(x, weight, conv_bias)
        found = u @ narrow.T
        rank = wide.shape[1]
        b, c = found[..., rank:].chunk(2, -1)
        y = _selective(u, found[..., :rank] @ wide.T + bias, a, b, c, d)
        ctx.save_for_backward(xz, found, y, narrow, wide, bias, out, *more)
        return (y * functional.silu(z)) @ out.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        xz, found, _, narrow, wide, bias, out, weight, conv_bias, a, d = ctx.saved_tensors
        with torch.enable_grad():
            own = [each.detach().requires_grad_() for each in (xz, weight, conv_bias)]
            x, z = own[0].chunk(2, -1)
            convolved = _convolved(x, own[1], own[2])
            u = convolved.detach().requires_grad_()
            rest = [each.detach().requires_grad_() for each in (found, wide, bias, a, d)]
            rank = wide.shape[1]
            b, c = rest[0][..., rank:].chunk(2, -1)
            y = _selective(u, rest[0][..., :rank] @ rest[1].T + rest[2], rest[3], b, c, rest[4])
            gated = y * functional.silu(z)
        d_out = grad.flatten(0, 1).T @ gated.detach().flatten(0, 1)
        du, dz, dfound, dwide, dbias, da, dd = torch.autograd.grad(gated, (u, z, *rest), grad @ out, retain_graph=True)
        dnarrow = dfound.flatten(0, 1).T @ u.detach().flatten(0, 1)
        dx, dweight, dconv = torch.autograd.grad(convolved, (x, *own[1:]), du + dfound @ narrow)
        return torch.cat((dx, dz), -1), dnarrow, dwide, dbias, d_out, dweight, dconv, da, dd


class Mamba1Mixer(nn.Module):
    """Mamba-1 (arXiv:2312.00752), with norms that of Jamba (arXiv:2403.19887), each part a function of its own."""

    def __init__(self, model: Model, m: Mamba1) -> None:
        super().__init__()
        h, d, n = model.hidden_size, m.inner, m.state_dim
        self.m, sizes = m, (m.dt_rank, n, n)
        self.into, self.out = nn.Linear(h, 2 * d, False), nn.Linear(d, h, False)
        self.narrow, self.wide = nn.Linear(d, sum(sizes), False), nn.Linear(m.dt_rank, d)
        self.weight, self.bias = nn.Parameter(torch.ones(d, m.conv_width)), nn.Parameter(torch.zeros(d))
        self.a, self.d = nn.Parameter(torch.zeros(d, n)), nn.Parameter(torch.ones(d))
        self.norms = nn.ModuleList(RMSNorm(size) for size in sizes) if m.norms else None

    def forward(self, x: Tensor) -> Tensor:
        xz = self.into(x)
        if self.norms is None:
            scan = (self.weight, self.bias, self.a, self.d)
            linears = (self.narrow.weight, self.wide.weight, self.wide.bias, self.out.weight)
            return _Inner.apply(xz, *linears, *scan)  # type: ignore[no-any-return]
        u, z = xz.chunk(2, -1)
        u = in_one_kernel(lambda *of: (_convolved(*of),), u, self.weight, self.bias)
        parts = self.narrow(u).split((self.m.dt_rank, self.m.state_dim, self.m.state_dim), -1)
        step, b, c = (norm(part.contiguous()) for norm, part in zip(self.norms, parts, strict=True))
        return self.out(in_one_kernel(_scan, z, u, self.wide(step), self.a, b, c, self.d))  # type: ignore[no-any-return]


def _dual(m: Mamba2, given: Tensor, weight: Tensor, bias: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """State-space duality token by token, a decay of every head (arXiv:2405.21060): gated, and before its gate."""
    z, mixed, step = given.split((m.inner, m.convolved, m.mamba_num_heads), -1)
    dt_bias, a, d = vectors.float()
    groups = m.mamba_num_groups * m.mamba_state_dim
    x, b, c = _convolved(mixed, weight, bias).float().split((m.inner, groups, groups), -1)
    x = x.unflatten(-1, (m.mamba_num_heads, -1))
    each = m.mamba_num_heads // m.mamba_num_groups
    b, c = (t.unflatten(-1, (m.mamba_num_groups, -1)).repeat_interleave(each, 2) for t in (b, c))
    now = functional.softplus(step.float() + dt_bias)
    state, found = torch.zeros(x.shape[0], *x.shape[2:], m.mamba_state_dim), []
    for t in range(x.shape[1]):
        decay = (-now[:, t] * a.exp()).exp()[..., None, None]
        state = decay * state + (now[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        found.append((state * c[:, t, :, None]).sum(-1))
    y = (torch.stack(found, 1) + d[:, None] * x).flatten(-2).to(given.dtype)
    return y * functional.silu(z), y


class Mamba2Mixer(nn.Module):
    def __init__(self, model: Model, m: Mamba2) -> None:
        super().__init__()
        h, self.m = model.hidden_size, m
        self.into = nn.Linear(h, m.inner + m.convolved + m.mamba_num_heads, False)
        self.weight, self.bias = (
            nn.Parameter(torch.ones(m.convolved, m.conv_width)),
            nn.Parameter(torch.zeros(m.convolved)),
        )
        self.vectors = nn.Parameter(torch.ones(3, m.mamba_num_heads))
        self.norm = RMSNorm(m.inner) if m.grouped_norm else nn.Identity()
        self.out = nn.Linear(m.inner, h, False)

    def forward(self, x: Tensor) -> Tensor:
        y = in_one_kernel(partial(_dual, self.m), self.into(x), self.weight, self.bias, self.vectors)
        return self.out(self.norm(y))  # type: ignore[no-any-return]


class DeltaMixer(nn.Module):
    """Kimi Delta Attention (arXiv:2510.26692), its recurrence token by token."""

    def __init__(self, model: Model, m: KimiDelta) -> None:
        super().__init__()
        h, self.m = model.hidden_size, m
        keys, values, heads, rank = m.keys, m.values, m.num_heads, m.gate_rank
        assert rank is not None
        widths = (keys, keys, values, m.value, rank, heads)
        self.widths = widths
        joined = (sum(widths),) if m.fused else widths
        self.into = nn.ModuleList(nn.Linear(h, width, False) for width in joined)
        self.decay = nn.Linear(m.value, heads * m.head_dim, False)
        self.gate = nn.Linear(rank, values, m.gate_bias)
        self.weight = nn.Parameter(torch.ones(2 * keys + values, m.conv_width))
        self.a, self.bias = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.zeros(heads * m.head_dim))
        self.norm, self.out = RMSNorm(m.value), nn.Linear(values, h, False)

    def forward(self, x: Tensor) -> Tensor:
        m, joined = self.m, torch.cat([each(x) for each in self.into], -1)
        q, k, v, decay, gate, beta = joined.split(self.widths, -1)
        q, k, v = _convolved(torch.cat((q, k, v), -1), self.weight).split((m.keys, m.keys, m.values), -1)
        q, k = (functional.normalize(t.unflatten(-1, (-1, m.head_dim)), dim=-1) for t in (q, k))
        q, k = (t.repeat_interleave(m.num_heads // q.shape[2], 2) for t in (q, k))
        v = v.unflatten(-1, (-1, m.value))
        fading = -self.a.exp()[:, None] * functional.softplus(self.decay(decay) + self.bias).unflatten(
            -1, (-1, m.head_dim)
        )
        state, found = torch.zeros(x.shape[0], m.num_heads, m.head_dim, m.value), []
        for t in range(x.shape[1]):
            state = fading[:, t].exp()[..., None] * state
            error = (v[:, t] - (k[:, t, ..., None] * state).sum(-2)) * beta[:, t, :, None].sigmoid()
            state = state + k[:, t, ..., None] * error[..., None, :]
            found.append((q[:, t, ..., None] * state).sum(-2))
        y = self.norm(torch.stack(found, 1).to(x.dtype)).flatten(-2)
        return self.out(y * self.gate(gate).sigmoid())  # type: ignore[no-any-return]


class SharedBlockMixer(nn.Module):
    """A block of attention and an MLP before a Mamba-2 mixer, with adapters of this use (Zamba2, arXiv:2411.15242)."""

    def __init__(self, model: Model, m: SharedBlock) -> None:
        super().__init__()
        h, d, f, rank = model.hidden_size, model.kv_channels, model.ffn_hidden_size, m.sizes.adapter_rank
        self.d, widths = d, [each * d for each in (model.num_attention_heads, *(2 * (model.num_query_groups,)))]
        self.first, self.second, self.third = RMSNorm(2 * h), RMSNorm(h), RMSNorm(h)
        self.qkv = nn.ModuleList(nn.Linear(2 * h, width, False) for width in widths)
        self.o, self.out = nn.Linear(widths[0], h, False), nn.Linear(h, h, False)
        self.up, self.down = nn.Linear(h, 2 * f, False), nn.Linear(f, h, False)
        adapted = [(2 * h, width) for width in widths] if m.sizes.use_shared_attention_adapter else []
        self.adapters = nn.ModuleList(
            nn.Sequential(nn.Linear(into, rank, False), nn.Linear(rank, width, False))
            for into, width in (*adapted, (h, 2 * f))
        )
        self.mamba = Mamba2Mixer(model, m.mamba)

    def forward(self, x: Tensor) -> Tensor:
        both = self.first(torch.cat((x, torch.ones_like(x)), -1))
        made = [product(both) for product in self.qkv]
        *beside, wide = self.adapters
        if beside:
            made = [one + adapter(both) for one, adapter in zip(made, beside, strict=True)]
        q, k, v = (one.unflatten(-1, (-1, self.d)).transpose(1, 2) for one in made)
        seen = self.second(self.o(_Flash.apply(rotate(q), rotate(k), v).flatten(2)))
        gate, up = (self.up(seen) + wide(seen)).chunk(2, -1)
        read = x + self.out(self.down(functional.silu(gate) * up))
        return x + self.mamba(self.third(read))  # type: ignore[no-any-return]
