"""The models that steps train: a ResNet-18 body with the head of a classifier or a detector.

    image -> ResNet-18 body, 1/32 -> classifier: mean, linear
                                  -> detector: 3 deconvolutions, 1/4 -> heat map, size, offset

Written here because torchvision is optional.  Weights are drawn, not downloaded: a step takes as
long with any weights.  Sources: He et al. 2016 (ResNet); Zhou et al. 2019, "Objects as Points"
(CenterNet's res_18).
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import nn

from labkit.batches import CLASSES


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, in_channels, H, W) -> (B, channels, H / stride, W / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


class Detector(nn.Module):
    """CenterNet's res_18: for every cell of 4x4 pixels, what is centered there and how large."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = build_body()
        self.upsample = nn.Sequential(
            _deconvolution(512),
            _deconvolution(256),
            _deconvolution(256),
        )
        self.heatmap = _head(classes)
        self.size_wh = _head(2)
        self.offset_xy = _head(2)
        self.apply(_draw_weights)
        # sigmoid(-2.19) = 0.1: nearly all cells are background, so a start at 0.5 would swamp the
        # loss.
        nn.init.constant_(cast("nn.Conv2d", self.heatmap[-1]).bias, -2.19)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Predict heat map logits, box sizes and center offsets.

        Args:
            image: (B, 3, S, S) float32, normalized, S a multiple of 32.

        Returns:
            heat map logits (B, classes, S/4, S/4), sizes and offsets (B, 2, S/4, S/4), in cells.
        """
        x = self.upsample(self.body(image))  # (B, 256, S/4, S/4)
        return self.heatmap(x), self.size_wh(x), self.offset_xy(x)


def build_body() -> nn.Sequential:
    """Build ResNet-18 up to its last block: (B, 3, S, S) -> (B, 512, S/32, S/32)."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        *(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1)),
        *(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1)),
        *(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1)),
        *(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1)),
    )


def build_classifier(classes: int = CLASSES) -> nn.Sequential:
    """Build ResNet-18: (B, 3, S, S) float32 normalized, S a multiple of 32 -> (B, classes)."""
    model = nn.Sequential(
        build_body(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)
    )
    return model.apply(_draw_weights)


def build_small_classifier(classes: int = CLASSES) -> nn.Sequential:
    """Build four convolutions of stride 2: (B, 3, S, S) float32 normalized -> (B, classes)."""
    channels = (3, 32, 64, 128, 256)
    body = [
        layer
        for i, o in pairwise(channels)
        for layer in (nn.Conv2d(i, o, 3, stride=2, padding=1), nn.ReLU(inplace=True))
    ]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))
    return nn.Sequential(*body, *head).apply(_draw_weights)


def _deconvolution(in_channels: int) -> nn.Sequential:
    # 4x4 at stride 2 with padding 1 doubles the side exactly.
    return nn.Sequential(
        nn.ConvTranspose2d(in_channels, 256, 4, 2, padding=1, bias=False),
        nn.BatchNorm2d(256),
        nn.ReLU(inplace=True),
    )


def _head(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(256, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, channels, 1),
    )


def _draw_weights(module: nn.Module) -> None:
    if not isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        return
    # A 1x1 convolution with bias is a head's last layer: small, so that the bias is the prior.
    if module.bias is not None and module.kernel_size == (1, 1):
        nn.init.normal_(module.weight, std=0.001)
    else:
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    if module.bias is not None:
        nn.init.zeros_(module.bias)
