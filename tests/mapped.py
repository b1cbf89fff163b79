"""Modules and tensors for tests of what stands in for them."""

import math

import torch
from torch import nn

from ngram_store._tensor_table import results

__all__ = ["DTYPES", "Engram", "MultiHeadEmbedding", "assert_same_bits", "fill_results"]

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def assert_same_bits(got, expected):
    """Fail unless two tensors have one shape, one dtype and the same bits, NaN's included."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    kind = _BITS[got.element_size()]
    differ = got.contiguous().view(kind) != expected.detach().contiguous().view(kind)
    assert not differ.any(), f"{int(differ.sum())} of {differ.numel()} elements differ"


def fill_results(monkeypatch):
    """Have the memory of results hold NaN, so that what is not written shows."""
    empty = results.empty

    def filled(shape, dtype):
        tensor, memory = empty(shape, dtype)
        return tensor.fill_(float("nan")), memory

    monkeypatch.setattr(results, "empty", filled)


class MultiHeadEmbedding(nn.Module):
    """Engram's: the tables of several heads, one behind the other."""

    def __init__(self, sizes, dim, dtype=None):
        super().__init__()
        self.num_heads, self.embedding_dim = len(sizes), dim
        starts = [sum(sizes[:head]) for head in range(len(sizes))]
        self.register_buffer("offsets", torch.tensor(starts, dtype=torch.long))
        self.embedding = nn.Embedding(sum(sizes), dim, dtype=dtype)

    def forward(self, ids):
        return self.embedding(ids + self.offsets)


class _ShortConv(nn.Module):
    def __init__(self, width, branches, kernel, dilation):
        super().__init__()
        channels = width * branches
        self.conv = nn.Conv1d(
            channels, channels, kernel, groups=channels, bias=False, padding=(kernel - 1) * dilation, dilation=dilation
        )
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(branches))

    def forward(self, x):
        length = x.shape[1]
        normed = torch.cat([norm(x[:, :, branch]) for branch, norm in enumerate(self.norms)], -1)
        mixed = self.conv(normed.transpose(1, 2))[..., :length]
        return nn.functional.silu(mixed).transpose(1, 2).reshape(x.shape)


class Engram(nn.Module):
    """Engram's memory layer, with multipliers and a token map that are made up."""

    def __init__(self, sizes, dim, width=32, branches=2, orders=3, vocabulary=1000):
        super().__init__()
        self.multi_head_embedding = MultiHeadEmbedding(sizes, dim)
        generator = torch.Generator().manual_seed(5)
        self.token_map = torch.randint(700, (vocabulary,), generator=generator)
        self.multipliers = (torch.randint(1 << 40, (orders,), generator=generator) * 2 + 1).tolist()
        self.sizes, self.orders, self.width = sizes, orders, width
        inner = len(sizes) * dim
        self.value_proj = nn.Linear(inner, width)
        self.key_projs = nn.ModuleList(nn.Linear(inner, width) for _ in range(branches))
        self.norm1 = nn.ModuleList(nn.RMSNorm(width) for _ in range(branches))
        self.norm2 = nn.ModuleList(nn.RMSNorm(width) for _ in range(branches))
        self.short_conv = _ShortConv(width, branches, 4, orders)

    def hashes(self, tokens):
        """Return the ids of all heads, shape (*tokens.shape, heads)."""
        compressed = self.token_map[tokens]
        each = len(self.sizes) // (self.orders - 1)
        columns, mixed = [], compressed * self.multipliers[0]
        for order in range(1, self.orders):
            before = nn.functional.pad(compressed, (order, 0), value=2)[:, : tokens.shape[1]]
            mixed = mixed ^ before * self.multipliers[order]
            columns += [mixed % size for size in self.sizes[(order - 1) * each : order * each]]
        return torch.stack(columns, -1)

    def forward(self, hidden, tokens):
        memory = self.multi_head_embedding(self.hashes(tokens)).flatten(-2)
        gates = []
        for branch, key in enumerate(self.key_projs):
            score = (self.norm1[branch](key(memory)) * self.norm2[branch](hidden[:, :, branch])).sum(-1)
            score = score / math.sqrt(self.width)
            gates.append(torch.sigmoid(score.abs().clamp_min(1e-6).sqrt() * score.sign()))
        value = torch.stack(gates, 2).unsqueeze(-1) * self.value_proj(memory).unsqueeze(2)
        return value + self.short_conv(value)
