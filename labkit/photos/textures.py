"""Textures and sensor noise of photographs, cut from noise fields.

    seed → a few noise fields → cut_texture → multiply: light and shade on a picture
         → sensor_noise       → random_crop

The power spectrum of photographs falls with the square of the frequency, which costs a decoder
other work than smooth or random pictures. A Fourier transform per image would take longer than the
JPEG, so textures are cut from a few noise fields made once per process.

Source: D. J. Field, "Relations between the statistics of natural images...",
J. Opt. Soc. Am. A 4 (1987), for the spectrum.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

FIELD_PX = 1024  # side of a noise field; larger than an image, so that crops differ
NOISE_LEVELS = 32  # standard deviation of the stored sensor noise
# Exponents of the fields' amplitude spectra: rough (gravel, grass), natural, smooth (cloth, sky).
FIELD_EXPONENTS = (0.5, 0.8, 1.2)


def cut_texture(
    seed: int, size: tuple[int, int], rng: np.random.Generator, *, smooth: bool = False
) -> np.ndarray:
    """Cut a (H, W) float32 texture with variance about 1, sometimes stretched like grain."""
    field = _fields(seed)[2 if smooth else rng.integers(len(FIELD_EXPONENTS))]
    stretch: tuple[float, float] = (1, 1) if rng.random() < 0.6 else (rng.uniform(0.25, 1), 1)
    if rng.random() < 0.5:
        stretch = stretch[::-1]
    cut = (max(1, int(size[0] * stretch[0])), max(1, int(size[1] * stretch[1])))
    crop = random_crop(field, cut, rng)
    return crop if cut == size else cv2.resize(crop, size[::-1])


def random_crop(field: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Cut a window at a random place and turn it over at random."""
    top = rng.integers(field.shape[0] - size[0] + 1)
    left = rng.integers(field.shape[1] - size[1] + 1)
    crop = field[top : top + size[0], left : left + size[1]]
    return cv2.flip(crop, int(rng.integers(-1, 2)))


@lru_cache(maxsize=1)
def sensor_noise(seed: int) -> np.ndarray:
    """Make (FIELD_PX, FIELD_PX, 3) uint8 white noise around 128."""
    rng = np.random.default_rng([seed, 0, 1])
    noise = rng.normal(128, NOISE_LEVELS, (FIELD_PX, FIELD_PX, 3))
    return np.clip(noise, 0, 255).astype(np.uint8)


def multiply(image: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Multiply (H, W, 3) uint8 by (H, W) float32, clipped to 0 to 255."""
    return cv2.multiply(image, cv2.merge([factor] * 3), dtype=cv2.CV_8U)


@lru_cache(maxsize=1)
def _fields(seed: int) -> tuple[np.ndarray, ...]:
    """Make the noise fields: (FIELD_PX, FIELD_PX) float32 each, mean 0, variance 1."""
    rng = np.random.default_rng([seed, 0])
    frequency = np.hypot(np.fft.fftfreq(FIELD_PX)[:, None], np.fft.rfftfreq(FIELD_PX))
    frequency[0, 0] = np.inf  # no mean
    white = np.fft.rfft2(rng.standard_normal((FIELD_PX, FIELD_PX)))
    fields = []
    for shift, exponent in enumerate(FIELD_EXPONENTS):
        field = np.fft.irfft2(white * frequency**-exponent)
        # Rounded, so that the last bits of a machine's Fourier transform do not reach the pixels.
        field = np.round(np.roll(field, 341 * shift, axis=(0, 1)) / field.std(), 3)
        fields.append(field.astype(np.float32))
    return tuple(fields)
