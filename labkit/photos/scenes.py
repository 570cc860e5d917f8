"""Draw synthetic scenes with the statistics of photographs, and their boxes.

    plan_scene → shapes back to front → annotate → the boxes of what is visible
                                      → paint    → pixels

Photographs have edges where objects hide each other, which cost a decoder more work than smooth
pictures; their fine grain is in `textures`. Painting and annotating share one map of what is
visible, so that the boxes are exact.

Source: A. B. Lee, D. Mumford, J. Huang, "Occlusion models for natural images",
Int. J. Comput. Vis. 41 (2001), for shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing.boxes import CATEGORIES
from labkit.photos.textures import (
    NOISE_LEVELS,
    cut_texture,
    multiply,
    random_crop,
    sensor_noise,
)

# (width, height) -> share of images; COCO's long side is 640 and most sides come from 4:3 and 3:2.
SIZES_PX = {
    (640, 480): 0.40, (640, 427): 0.24, (480, 640): 0.15, (427, 640): 0.09, (640, 640): 0.03,
    (640, 360): 0.03, (640, 426): 0.03, (640, 512): 0.02, (360, 640): 0.01,
}  # fmt: skip
OUTLINE_POINTS = 28

# What an object is made of: (x, y, half width, half height, roundness) in units of its size;
# roundness 2 is an ellipse, more is a box with rounded corners.
PARTS = {
    "person": ((-0.15, 0.28, 0.13, 0.22, 4), (0.15, 0.28, 0.13, 0.22, 4),
               (0, -0.1, 0.34, 0.25, 3), (0, -0.41, 0.17, 0.09, 2)),
    "vehicle": ((0, -0.22, 0.32, 0.25, 4), (0, -0.22, 0.24, 0.15, 4), (0, 0.1, 0.5, 0.24, 5),
                (-0.29, 0.34, 0.12, 0.16, 2), (0.29, 0.34, 0.12, 0.16, 2)),
    "animal": ((-0.24, 0.25, 0.06, 0.25, 4), (0.2, 0.25, 0.06, 0.25, 4),
               (0, 0, 0.38, 0.22, 2.5), (0.36, -0.25, 0.14, 0.16, 2)),
    "round": ((0, 0, 0.5, 0.5, 2), (0.05, -0.05, 0.28, 0.28, 2)),
    "boxy": ((0, 0, 0.5, 0.5, 8), (0, -0.05, 0.38, 0.32, 8)),
}  # fmt: skip
WIDTH_TO_HEIGHT = {"person": 0.42, "vehicle": 1.9, "animal": 1.35, "round": 1.0, "boxy": 1.2}

# Blue, green, red: clear, overcast, hazy, dusk, plaster, wood.
SKIES = np.array([[215, 170, 110], [205, 200, 195], [225, 205, 180], [120, 150, 215],
                  [175, 195, 205], [95, 130, 160]])  # fmt: skip
# Grass, dry grass, foliage, earth, sand, asphalt, concrete, water, brick.
GROUNDS = np.array([[55, 120, 95], [80, 140, 150], [40, 75, 55], [55, 80, 105], [130, 170, 190],
                    [85, 82, 80], [140, 145, 148], [135, 115, 80], [70, 85, 140]])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Thing:
    """One object: polygons that share a texture and may hide what is behind them."""

    category_id: int
    outlines: np.ndarray
    """(parts, OUTLINE_POINTS, 2) int32, x and y in pixels; may reach outside the image."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is where in one image, before any pixel is painted."""

    width_px: int
    height_px: int
    horizon_px: int
    things: tuple[Thing, ...]
    """Back to front."""
    seed: int
    image_id: int


def plan_scene(seed: int, image_id: int) -> Scene:
    """Choose size, objects and places of one image; the same for the same two numbers."""
    rng = np.random.default_rng([seed, image_id, 0])
    sizes = list(SIZES_PX)
    width_px, height_px = sizes[rng.choice(len(sizes), p=list(SIZES_PX.values()))]
    horizon = rng.uniform(0.25, 0.65) * height_px
    count = min(15, 1 + rng.geometric(0.13))
    # Things that stand lower in the picture are nearer: larger, and in front of the others.
    feet = np.sort(rng.uniform(horizon + 0.05 * height_px, 0.98 * height_px, count))
    nearness = (feet - horizon) / (height_px - horizon)
    heights = min(width_px, height_px) * (0.12 + 0.5 * nearness) * rng.lognormal(-0.2, 0.5, count)
    things = []
    for foot, height in zip(feet, np.clip(heights, 24, 0.9 * height_px)):
        # COCO: three boxes in ten are people.
        category_id = 1 if rng.random() < 0.3 else int(rng.choice(list(CATEGORIES)))
        kind = _kind(category_id)
        width = height * WIDTH_TO_HEIGHT[kind] * rng.lognormal(0, 0.15)
        width, height = np.array([width, height]) * min(1, 0.8 * width_px / width)
        centre = (rng.uniform(0.08, 0.92) * width_px, foot - height / 2)
        wobble = 0.005 if kind in ("vehicle", "boxy") else 0.03
        outlines = _outlines(np.array(PARTS[kind]), points=OUTLINE_POINTS, wobble=wobble, rng=rng)
        flip = rng.choice([-1, 1])
        outlines = np.rint(outlines * [flip * width, height] + centre).astype(np.int32)
        things.append(Thing(category_id=category_id, outlines=outlines))
    return Scene(
        width_px=width_px,
        height_px=height_px,
        horizon_px=round(horizon),
        things=tuple(things),
        seed=seed,
        image_id=image_id,
    )


def visible_map(scene: Scene) -> np.ndarray:
    """Return which object each pixel shows.

    Returns:
        (H, W) uint8, 0 for none, else 1 + the place in `scene.things`.
    """
    owners = np.zeros((scene.height_px, scene.width_px), np.uint8)
    for number, thing in enumerate(scene.things, start=1):
        for outline in thing.outlines:
            cv2.fillPoly(owners, [outline], number)
    return owners


def annotate(scene: Scene) -> Annotation:
    """Enclose what is visible of each object, in whole pixels; at least one box."""
    owners = visible_map(scene)
    boxes, category_ids = [], []
    for number, thing in enumerate(scene.things, start=1):
        window = _window(thing, owners.shape)
        mask = (owners[window] == number).view(np.uint8)
        left, top, width, height = cv2.boundingRect(mask)
        left, top = left + window[1].start, top + window[0].start
        # The front object is never hidden and always stands inside the image.
        # A rest of an object below 64 pixels gets no box: annotators would skip it.
        if cv2.countNonZero(mask) >= 64 or number == len(scene.things):
            boxes.append((left, top, left + width, top + height))
            category_ids.append(thing.category_id)
    return Annotation(
        boxes_xyxy=np.array(boxes, np.float32).reshape(-1, 4),
        category_ids=np.array(category_ids, np.int64),
    )


def paint(scene: Scene) -> np.ndarray:
    """Paint a scene.

    Returns:
        (H, W, 3) uint8 BGR, OpenCV's order.
    """
    rng = np.random.default_rng([scene.seed, scene.image_id, 1])
    height_px, width_px = scene.height_px, scene.width_px
    contrast = rng.uniform(0.6, 1.3)
    canvas = _background(scene, rng)
    texture = 1 + 0.2 * contrast * cut_texture(scene.seed, (height_px, width_px), rng)
    # The distance is smoother than the ground in front of the camera.
    texture[: scene.horizon_px] = 0.7 + 0.3 * texture[: scene.horizon_px]
    canvas = multiply(canvas, texture)
    blur_px = rng.uniform(-1.2, 1.1)  # depth of field
    if blur_px > 0.5:
        canvas = cv2.GaussianBlur(canvas, (0, 0), blur_px)
    _cast_shadows(canvas, scene)
    towards_light = rng.normal(0, 0.25, 2)
    owners = visible_map(scene)
    for number, thing in enumerate(scene.things, start=1):
        window = _window(thing, owners.shape)
        # What is painted is what `annotate` sees, so the boxes are exact.
        mask = (owners[window] == number).view(np.uint8)
        painted = multiply(*_coloured(thing, window, scene.seed, rng, towards_light, contrast))
        cv2.copyTo(painted, mask, canvas[window])
    # Uneven light over the whole picture, then the lens and the sensor.
    light = cut_texture(scene.seed, (height_px // 8, width_px // 8), rng, smooth=True)
    light = np.exp(0.12 * cv2.GaussianBlur(light, (0, 0), 4))
    canvas = multiply(canvas, cv2.resize(light, (width_px, height_px)))
    canvas = cv2.GaussianBlur(canvas, (3, 3), rng.uniform(0.2, 0.45))
    noise = random_crop(sensor_noise(scene.seed), (height_px, width_px), rng)
    share = rng.uniform(0.8, 2.5) / NOISE_LEVELS  # of 255 levels, standard deviation
    return cv2.addWeighted(canvas, 1, noise, share, -128 * share)


def _kind(category_id: int) -> str:
    if category_id == 1:
        return "person"
    if 2 <= category_id <= 9:
        return "vehicle"
    if 16 <= category_id <= 25:
        return "animal"
    return "round" if category_id % 2 else "boxy"


def _window(thing: Thing, shape: tuple[int, int]) -> tuple[slice, slice]:
    """Find the rows and columns of an (H, W) image that an object may cover."""
    left, top, width, height = cv2.boundingRect(thing.outlines.reshape(-1, 1, 2))
    return (
        slice(max(top, 0), min(top + height, shape[0])),
        slice(max(left, 0), min(left + width, shape[1])),
    )


def _outlines(
    parts: np.ndarray, *, points: int, wobble: float, rng: np.random.Generator
) -> np.ndarray:
    """Turn (N, 5) parts into (N, points, 2) outlines with a slightly uneven edge."""
    x, y, half_width, half_height, roundness = parts.T[:, :, None]
    angles = np.linspace(0, 2 * np.pi, points, endpoint=False)
    cos, sin = np.cos(angles), np.sin(angles)
    # A superellipse, |x|^n + |y|^n = 1, with most points where it bends.
    x_unit = np.sign(cos) * np.abs(cos) ** (2 / roundness)
    y_unit = np.sign(sin) * np.abs(sin) ** (2 / roundness)
    phases = rng.uniform(0, 2 * np.pi, (2, len(parts), 1))
    radius = 1 + wobble * (np.sin(3 * angles + phases[0]) + np.sin(5 * angles + phases[1]))
    return np.stack([x + half_width * radius * x_unit, y + half_height * radius * y_unit], axis=-1)


def _background(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Paint sky or wall, ridges, ground and many small shapes: (H, W, 3) uint8."""
    height_px, width_px, horizon_px = scene.height_px, scene.width_px, scene.horizon_px
    sky = rng.choice(SKIES) * rng.uniform(0.8, 1.1) + rng.normal(0, 6, 3)
    ends = np.array([[sky], [0.7 * sky + 50]]).clip(0, 255).astype(np.uint8)  # hazy below
    canvas = cv2.resize(ends, (width_px, height_px), interpolation=cv2.INTER_LINEAR)
    steps = np.linspace(0, width_px, 65)
    for depth in (0.0, 0.5, 1.0):
        ridge = np.cumsum(rng.normal(0, (1 - depth) * 0.012 * height_px, 65))
        ridge += horizon_px - (1 - depth) * 0.12 * height_px - ridge.mean()
        ground = rng.choice(GROUNDS) * rng.uniform(0.7, 1.3)
        colour = depth * ground + (1 - depth) * (0.5 * ground + 0.4 * sky)  # haze
        corners = [[width_px, height_px], [0, height_px]]
        polygon = np.vstack([np.column_stack([steps, ridge]), corners])
        cv2.fillPoly(canvas, [polygon.astype(np.int32)], colour.tolist())
    # Stones and grass on the ground, leaves in bushes and trees.
    y = horizon_px + rng.beta(1, 1.6, int(rng.integers(300, 2000))) * (height_px - horizon_px)
    _scatter(canvas, np.column_stack([rng.uniform(0, width_px, len(y)), y]), ground, rng)
    for _ in range(rng.integers(2, 7)):
        centre = rng.uniform([0, 0.8 * horizon_px], [width_px, 1.5 * horizon_px])
        spread = rng.uniform(0.03, 0.16, 2) * width_px
        places = rng.normal(centre, spread, (int(rng.integers(200, 1200)), 2))
        _scatter(canvas, places, rng.choice(GROUNDS) * rng.uniform(0.4, 1.2), rng)
    return canvas


def _scatter(
    canvas: np.ndarray, places: np.ndarray, colour: np.ndarray, rng: np.random.Generator
) -> None:
    """Paint small shapes of one colour family at (N, 2) places, the largest first."""
    count = len(places)
    # Sizes follow a power law, so the picture looks alike at every scale.
    half_px = np.minimum(1.1 * rng.uniform(0, 1, count) ** -0.6, 0.06 * max(canvas.shape))
    half_px = np.sort(half_px)[::-1]
    elongation = rng.lognormal(0, 0.4, count)
    parts = np.column_stack(
        [places, half_px * elongation, half_px / elongation, rng.choice([1.5, 2, 4], count)]
    )
    light = rng.lognormal(0, 0.35, (count, 1))
    colours = (colour * light + rng.normal(0, 8, (count, 3))).clip(0, 255).tolist()
    outlines = _outlines(parts, points=12, wobble=0.12, rng=rng)
    for outline, fill in zip(np.rint(outlines).astype(np.int32), colours):
        cv2.fillConvexPoly(canvas, outline, fill)


def _coloured(
    thing: Thing,
    window: tuple[slice, slice],
    seed: int,
    rng: np.random.Generator,
    towards_light: np.ndarray,
    contrast: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Paint one object's surface: (h, w, 3) uint8 colours and (h, w) float32 light on them."""
    rows, columns = window
    size = (rows.stop - rows.start, columns.stop - columns.start)
    vivid = rng.choice([6, 12, 35])  # few things are colourful
    base = rng.lognormal(4.5, 0.4) + rng.normal(0, vivid, 3)
    colours = np.full((*size, 3), base.clip(0, 255), np.uint8)
    for outline in thing.outlines:
        colour = base * rng.lognormal(0, 0.3) + rng.normal(0, vivid / 3, 3)
        offset = (-columns.start, -rows.start)
        cv2.fillPoly(colours, [outline], colour.tolist(), offset=offset)
    for _ in range(rng.integers(0, 3)):  # spots, buttons, letters
        places = rng.uniform(0, 1, (int(rng.integers(5, 50)), 2)) * size[::-1]
        _scatter(colours, places, base * rng.lognormal(0, 0.5), rng)
    x, y = np.linspace(-1, 1, size[1]), np.linspace(-1, 1, size[0])[:, None]
    light = (1 + towards_light[0] * x + towards_light[1] * y).astype(np.float32)
    return colours, light * (1 + 0.17 * contrast * cut_texture(seed, size, rng))


def _cast_shadows(canvas: np.ndarray, scene: Scene) -> None:
    """Darken the ground under each object, softly."""
    small: np.ndarray = np.full((scene.height_px // 8, scene.width_px // 8), 1, np.float32)
    for thing in scene.things:
        left, top, width, height = cv2.boundingRect(thing.outlines.reshape(-1, 1, 2))
        foot = ((left + width // 2) // 8, (top + height) // 8)
        cv2.ellipse(small, foot, (width // 13 + 1, width // 50 + 1), 0, 0, 360, 0.45, -1)
    small = cv2.GaussianBlur(small, (0, 0), 1.2)
    canvas[:] = multiply(canvas, cv2.resize(small, (scene.width_px, scene.height_px)))
