"""A vision transformer for small images, with the parameter names of timm's, so that their state-dicts load by name.

ViT-tiny for CIFAR (dim 192, depth 12, 3 heads, MLP 768, patch 4, 64 + 1 tokens of a 32x32 image) has 50 conv/linear
layers with 5,319,552 weights, and 365,107,584 MACs of which 19,468,800 are the two matrix products of attention.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from arquant.base.errors import InputError

EPSILON = 1e-6
"""of every LayerNorm, as in the public ViT checkpoints"""


class Attention(nn.Module):
    """Multi-head self-attention over tokens (N, T, dim), with one linear layer for query, key and value."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (N, T, dim) to tokens of the same shape."""
        count, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(count, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        heads = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(heads.transpose(1, 2).reshape(count, tokens, dim))
        return out


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (N, T, dim) to tokens of the same shape."""
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class Block(nn.Module):
    """Pre-norm transformer block: attention, then MLP, each added to its input."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, EPSILON)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, EPSILON)
        self.mlp = Mlp(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (N, T, dim) to tokens of the same shape."""
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchEmbed(nn.Module):
    """Cut images (N, 3, H, W) into patches and embed them as tokens (N, H W / patch^2, dim), row by row."""

    def __init__(self, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to tokens."""
        out: Tensor = self.proj(x)
        return out.flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """Maps normalised images (N, 3, image_size, image_size) to logits (N, num_classes), read off a class token."""

    def __init__(
        self,
        num_classes: int = 10,
        *,
        image_size: int = 32,
        patch: int = 4,
        dim: int = 192,
        depth: int = 12,
        heads: int = 3,
        hidden: int = 768,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise InputError(f"the image size must be a multiple of the patch size {patch}, got {image_size}")
        if dim % heads:
            raise InputError(f"dim must be a multiple of heads, got dim={dim} and heads={heads}")
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch) ** 2 + 1, dim))
        self.patch_embed = PatchEmbed(patch, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, EPSILON)
        self.head = nn.Linear(dim, num_classes)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, 3, H, W), normalised, to logits (N, num_classes)."""
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits

    def _initialise(self) -> None:
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
