"""Batched augmentation against one-image references that are given the same draws."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flashback.batches import augment

BATCH = 6


def images(channels=3, height=9, width=7, unit=False, seed=0):
    """uint8 images, or the same ones as floats in [0, 1]."""
    batch = torch.randint(0, 256, (BATCH, channels, height, width), generator=seeded(seed), dtype=torch.uint8)
    return batch.float() / 255 if unit else batch


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def same(result, expected, tolerance=1e-6):
    expected = np.stack(expected)
    assert result.shape == expected.shape
    assert np.abs(result.double().numpy() - expected).max() <= tolerance


both_dtypes = pytest.mark.parametrize("unit", [False, True])
both_channels = pytest.mark.parametrize("channels", [1, 3])


@both_dtypes
@both_channels
def test_crop(channels, unit):
    x = images(channels, unit=unit)
    offsets = torch.randint(0, 9, (BATCH, 2), generator=seeded())
    expected = []
    for image, (row, column) in zip(x.numpy(), offsets.tolist(), strict=True):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
        expected.append(padded[:, row : row + 9, column : column + 7])
    result = augment.random_crop(x, 4, seeded())
    assert result.dtype == x.dtype
    same(result, expected, 0)


def test_crop_offsets_are_uniform_and_reach_both_ends():
    x = torch.zeros(20_000, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4] = 1  # a crop moves this pixel to every place of the image
    places = augment.random_crop(x, 4, seeded()).flatten(1).int().argmax(1)
    counts = torch.bincount(places, minlength=81)
    assert (counts / 20_000 - 1 / 81).abs().max() < 0.004


@both_dtypes
@both_channels
def test_flip(channels, unit):
    x = images(channels, unit=unit)
    mask = torch.rand(BATCH, generator=seeded()) < 0.5
    assert 0 < mask.sum() < BATCH
    expected = [image[:, :, ::-1] if flip else image for image, flip in zip(x.numpy(), mask.tolist(), strict=True)]
    same(augment.random_flip(x, seeded()), expected, 0)


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_flip_rate(p):
    x = torch.tensor([[0, 1]], dtype=torch.uint8).expand(10_000, 1, 1, 2)
    rate = augment.random_flip(x, seeded(), p)[:, 0, 0, 0].float().mean().item()
    assert rate == pytest.approx(p, abs=0.02)


@pytest.mark.parametrize("size", [3, 4])
@both_dtypes
def test_cutout(size, unit):
    x = images(unit=unit).clamp(min=0.01 if unit else 1)
    draws = seeded(3)
    centres = torch.stack([torch.randint(0, length, (BATCH,), generator=draws) for length in (9, 7)], 1)
    expected = []
    for image, (row, column) in zip(x.numpy(), centres.tolist(), strict=True):
        image = image.copy()
        top, left = row - size // 2, column - size // 2
        image[:, max(top, 0) : top + size, max(left, 0) : left + size] = 0
        expected.append(image)
    same(augment.cutout(x, size, seeded(3)), expected, 0)


def test_cutout_centres_are_anywhere():
    holes = 1 - augment.cutout(torch.ones(5_000, 1, 9, 7, dtype=torch.uint8), 1, seeded())
    assert holes.sum(dim=(1, 2, 3)).eq(1).all()
    assert holes.sum(dim=(0, 1)).min() > 40  # 79 expected


def test_centre_crop():
    x = images()
    assert torch.equal(augment.centre_crop(x, 5), x[:, :, 2:7, 1:6])


@pytest.mark.parametrize("size", [4, 9, 20])
@both_channels
@both_dtypes
def test_resized_crop_is_pillows(size, channels, unit):
    x = images(channels, height=16, width=12, unit=unit)
    boxes = augment.draw_boxes(BATCH, (16, 12), (0.2, 1.0), (3 / 4, 4 / 3), seeded())
    expected = []
    for image, (top, left, height, width) in zip(x.numpy(), boxes.tolist(), strict=True):
        box = (left, top, left + width, top + height)
        planes = [Image.fromarray(plane).crop(box).resize((size, size), Image.Resampling.BILINEAR) for plane in image]
        expected.append(np.stack([np.asarray(plane) for plane in planes]).astype(float))
    # Pillow rounds whole numbers after each of the two directions.
    same(augment.resized_crop_at(x, boxes, (size, size)), expected, 1e-5 if unit else 1)


def test_resized_crop_of_the_whole_image_changes_nothing():
    x = images(height=8, width=8)
    assert torch.equal(augment.resized_crop_at(x, torch.tensor([[0.0, 0.0, 8.0, 8.0]] * BATCH), (8, 8)), x)


def test_resized_crop_under_autocast_keeps_its_precision():
    x = images(unit=True)
    expected = augment.random_resized_crop(x, (9, 9), (0.2, 1.0), (0.75, 1.33), seeded())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augment.random_resized_crop(x, (9, 9), (0.2, 1.0), (0.75, 1.33), seeded()), expected)


@settings(max_examples=30)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    low=st.floats(0.05, 1),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (2.0, 3.0), (0.2, 0.3)]),
)
def test_boxes_lie_in_the_image(shape, low, ratio):
    boxes = augment.draw_boxes(200, shape, (low, 1.0), ratio, seeded())
    top, left, height, width = boxes.unbind(1)
    assert torch.equal(boxes, boxes.round())
    assert (torch.stack([top, left]) >= 0).all()
    assert (torch.stack([height, width]) >= 1).all()
    assert (top + height <= shape[0]).all()
    assert (left + width <= shape[1]).all()


def one_box(generator, side=64):
    """The textbook loop: try areas and ratios until one fits."""
    while True:
        area = generator.uniform(0.2, 1) * side * side
        ratio = np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3)))
        height, width = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if height <= side and width <= side:
            return generator.integers(0, side - height + 1), generator.integers(0, side - width + 1), height, width


def test_boxes_are_distributed_as_in_the_textbook_loop():
    boxes = augment.draw_boxes(4_000, (64, 64), (0.2, 1.0), (3 / 4, 4 / 3), seeded()).numpy()
    generator = np.random.default_rng(0)
    expected = np.array([one_box(generator) for _ in range(4_000)])
    quantiles = np.linspace(0, 1, 11)[1:-1]
    for measure in (
        lambda box: box[:, 2] * box[:, 3] / 64**2,
        lambda box: box[:, 3] / box[:, 2],
        *(lambda box, side=side: box[:, side] / 64 for side in range(4)),
    ):
        got, reference = (np.quantile(measure(box), quantiles) for box in (boxes, expected))
        np.testing.assert_allclose(got, reference, atol=0.035)


def test_boxes_without_a_fit_are_the_largest_centred_ones():
    boxes = augment.draw_boxes(3, (10, 40), (1.0, 1.0), (1.0, 2.0), seeded())
    assert boxes.tolist() == [[0, 10, 10, 20]] * 3


def luma(image):
    """The grey plane of a [C, H, W] float image."""
    return image[0] if len(image) == 1 else 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def turned_hue(image, turns):
    result = np.empty_like(image)
    for row, column in np.ndindex(image.shape[1:]):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column])
        result[:, row, column] = colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value)
    return result


def jittered(image, amounts, order):
    """The four changes on one float image, in the given order."""
    for step in order:
        amount = amounts[step]
        if step == augment.HUE:
            image = turned_hue(image, amount) if len(image) == 3 else image
        else:
            base = {
                augment.BRIGHTNESS: 0,
                augment.CONTRAST: luma(image).mean(),
                augment.SATURATION: luma(image)[None],
            }[step]
            image = np.clip(amount * image + (1 - amount) * base, 0, 1)
    return image


@both_channels
def test_jitter(channels):
    x = images(channels, unit=True)
    amounts, order = augment.draw_jitter(BATCH, 0.4, 0.4, 0.4, 0.1, seeded())
    expected = [
        jittered(image.double().numpy(), *draws)
        for image, *draws in zip(x, amounts.tolist(), order.tolist(), strict=True)
    ]
    result = augment.jitter_by(x, amounts, order)
    same(result, expected, 1e-5)
    assert (result - x).flatten(1).abs().amax(1).min() > 0.01


def test_jitter_draws():
    amounts, order = augment.draw_jitter(4_000, 0.4, 0.3, 2.0, 0.1, seeded())
    expected = torch.tensor([[0.6, 0.7, 0.0, -0.1], [1.4, 1.3, 3.0, 0.1]])
    torch.testing.assert_close(torch.stack([amounts.amin(0), amounts.amax(0)]), expected, atol=0.01, rtol=0)
    torch.testing.assert_close(amounts.mean(0), expected.mean(0), atol=0.05, rtol=0)
    assert order.unique(dim=0).shape == (24, 4)  # every order occurs


def test_jitter_probability():
    x = images(unit=True)[:1].expand(5_000, -1, -1, -1)
    changed = (augment.color_jitter(x, 0.4, 0.4, 0.4, 0.1, seeded(), p=0.8) != x).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("turns", [-0.5, -0.1, 0.0, 0.05, 0.3])
def test_hue_of_every_kind_of_colour(turns):
    levels = torch.tensor([0.0, 0.25, 0.5, 1.0])
    x = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 8, 8)
    expected = [turned_hue(x[0].double().numpy(), turns)]
    same(augment.shift_hue(x, torch.tensor([turns])), expected, 1e-6)


@both_dtypes
def test_brightness(unit):
    x = images(unit=unit)
    factors = torch.tensor([0.0, 0.5, 0.9, 1.0, 1.1, 2.0])
    top = 1 if unit else 255
    expected = [np.clip(image.double().numpy() * f, 0, top) for image, f in zip(x, factors.tolist(), strict=True)]
    if not unit:
        expected = [np.floor(image + 1e-4) for image in expected]
    same(augment.blend(x, torch.zeros(()), augment.per_image(factors)), expected)
    ratio = augment.brightness_jitter(torch.full((9_000, 1, 1, 1), 0.5), seeded()) / 0.5
    assert ratio.min().item() == pytest.approx(1 - 63 / 255, abs=1e-3)
    assert ratio.max().item() == pytest.approx(1 + 63 / 255, abs=1e-3)


@both_dtypes
def test_greyscale(unit):
    x = images(unit=unit)
    mask = torch.rand(BATCH, generator=seeded()) < 0.5
    expected = []
    for image, grey in zip(x.double().numpy(), mask.tolist(), strict=True):
        plane = luma(image) if unit else np.round(luma(image))
        expected.append(np.stack([plane] * 3) if grey else image)
    same(augment.greyscale(x, 0.5, seeded()), expected)
    many = x[:1].expand(5_000, -1, -1, -1)
    changed = (augment.greyscale(many, 0.2, seeded()) != many).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(0.2, abs=0.02)


@both_dtypes
def test_colour_changes_leave_grey_images_alone(unit):
    x = images(1, unit=unit)
    assert torch.equal(augment.greyscale(x, 1.0, seeded()), x)
    unit_x = augment.as_unit(x)
    torch.testing.assert_close(augment.color_jitter(unit_x, 0, 0, 0.9, 0.5, seeded()), unit_x)
