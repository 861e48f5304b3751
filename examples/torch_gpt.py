"""A small GPT in plain PyTorch. Its parameters have the names, shapes and order of Nebula-I's own `gpt2` family.

So a site that runs this and a site that runs `nebula-i train` can train the same model (docs/python.md). The output is tied, norms
stand before the sublayers, GELU is the tanh form, positions are learned.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.norm(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class FeedForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.add_module("in", nn.Linear(hidden, 4 * hidden))
        self.out = nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        return x + self.out(F.gelu(getattr(self, "in")(self.norm(x)), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.ffn = FeedForward(hidden)

    def forward(self, x):
        return self.ffn(self.attention(x))


class GPT(nn.Module):
    def __init__(self, vocab=256, hidden=128, layers=4, heads=4, positions=128):
        super().__init__()
        self.embed = nn.ModuleDict({"token": nn.Embedding(vocab, hidden)})
        self.decoder = nn.ModuleDict({
            "embed": nn.ModuleDict({"position": nn.Embedding(positions, hidden)}),
            "layers": nn.ModuleList(Layer(hidden, heads) for _ in range(layers)),
            "norm": nn.LayerNorm(hidden),
        })
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if name.endswith("out.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids):
        """ids (batch, length) → logits (batch, length, vocab)"""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.embed["token"](ids) + self.decoder["embed"]["position"](positions)
        for layer in self.decoder["layers"]:
            x = layer(x)
        return F.linear(self.decoder["norm"](x), self.embed["token"].weight)
