"""Networks of the model zoo that are written here; every forward returns a scalar loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """`layers` times (Linear, GELU); the loss is the mean square of the output."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        for linear in self.linears:  # the default gain would shrink deep gradients to nothing
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, width]."""
        for linear in self.linears:
            x = F.gelu(linear(x))
        return x.float().square().mean()


class ResidualBlock(nn.Module):
    """relu(x + BN(conv3x3(relu(BN(conv3x3(x)))))) at a constant number of channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, channels, height, width], and so is the result."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(hidden)))


class ResNet(nn.Module):
    """A stride-2 stem, then residual blocks that all work at half resolution (no max-pool)."""

    def __init__(self, blocks: int, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.blocks = nn.ModuleList(ResidualBlock(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """images: [batch, 3, image, image], labels: [batch]."""
        x = F.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean(dim=(2, 3))).float(), labels)


class DoubleConv(nn.Module):
    """Twice (conv3x3, GroupNorm, SiLU)."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(8, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(8, channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels_in, height, width] to [batch, channels_out, height, width]."""
        x = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(x)))


class UNet(nn.Module):
    """Encoder and decoder of `levels` resolutions, joined by skip concatenations; MSE loss."""

    def __init__(self, base: int, levels: int) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(levels)]
        self.down = nn.ModuleList(map(DoubleConv, [3, *widths[:-1]], widths))
        finer, coarser = widths[-2::-1], widths[:0:-1]
        self.reduce = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, padding=1) for c_in, c_out in zip(coarser, finer, strict=True)
        )
        self.up = nn.ModuleList(DoubleConv(2 * channels, channels) for channels in finer)
        self.head = nn.Conv2d(base, 3, 1)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """images and targets: [batch, 3, image, image]; image divides by 2**(levels - 1)."""
        x, skips = images, []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for reduce, block in zip(self.reduce, self.up, strict=True):
            x = reduce(F.interpolate(x, scale_factor=2, mode="nearest"))
            x = block(torch.cat([skips.pop(), x], dim=1))
        return F.mse_loss(self.head(x).float(), targets.float())


class EncoderLayer(nn.Module):
    """Pre-LN transformer layer whose attention keeps its weights explicit (no fused kernel)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        """x: [batch, tokens, width], and so is the result."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [batch, heads, tokens, head width]
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        weights = self.dropout(scores.softmax(dim=-1))  # [batch, heads, tokens, tokens]
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, tokens, width], and so is the result."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class ViT(nn.Module):
    """Vision transformer over (image / patch)**2 patches and a class token."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        image: int,
        patch: int,
        classes: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """images: [batch, 3, image, image], labels: [batch]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.dropout(x + self.positions)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])).float(), labels)
