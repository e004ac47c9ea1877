"""AutoAugment's operations against Pillow, image by image."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from flashback.batches.autoaugment import (
    CIFAR10_POLICY,
    IDENTITY,
    IMAGENET_POLICY,
    OPERATIONS,
    RANGES,
    apply_operation,
    auto_augment,
    draw_steps,
    magnitude,
)

POLICIES = pytest.mark.parametrize("policy", [CIFAR10_POLICY, IMAGENET_POLICY], ids=["cifar10", "imagenet"])
GREY = {1: 128, 3: (128, 128, 128)}


def affine(image, *coefficients):
    fill = GREY[len(image.getbands())]
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.Resampling.NEAREST, fillcolor=fill)


PILLOW = {
    "ShearX": lambda image, amount: affine(image, 1, amount, 0, 0, 1, 0),
    "ShearY": lambda image, amount: affine(image, 1, 0, 0, amount, 1, 0),
    "TranslateX": lambda image, amount: affine(image, 1, 0, amount * image.width, 0, 1, 0),
    "TranslateY": lambda image, amount: affine(image, 1, 0, 0, 0, 1, amount * image.height),
    "Rotate": lambda image, amount: image.rotate(amount, fillcolor=GREY[len(image.getbands())]),
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Solarize": lambda image, amount: ImageOps.solarize(image, amount),
    "Posterize": lambda image, amount: ImageOps.posterize(image, int(amount)),
    "Color": lambda image, amount: ImageEnhance.Color(image).enhance(1 + amount),
    "Contrast": lambda image, amount: ImageEnhance.Contrast(image).enhance(1 + amount),
    "Brightness": lambda image, amount: ImageEnhance.Brightness(image).enhance(1 + amount),
    "Sharpness": lambda image, amount: ImageEnhance.Sharpness(image).enhance(1 + amount),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(channels, count=5, side=32):
    """Smooth and noisy images of several ranges, one constant, one of two values."""
    generator = np.random.default_rng(0)
    ramp = np.linspace(0, 1, side)
    smooth = 40 + 90 * ramp[:, None] + 70 * np.sin(6 * ramp)[None]
    images = [generator.integers(0, 256, (channels, side, side)), np.stack([smooth + 9 * c for c in range(channels)])]
    images += [generator.integers(60, 61 + 30 * step, (channels, side, side)) for step in range(1, count - 3)]
    images += [np.full((channels, side, side), 77), np.where(generator.random((channels, side, side)) < 0.1, 3, 200)]
    return torch.from_numpy(np.stack(images).astype(np.uint8))


def to_pillow(image):
    return Image.fromarray(image[0].numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy())


def from_pillow(image):
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def signed_levels(name):
    bounds = RANGES[name]
    if bounds is None:
        return [0.0]
    values = [magnitude(name, level) for level in (0, 3, 7, 9)]
    return values + [-value for value in values] if bounds[2] else values


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_operation_is_pillows(name, channels):
    x = pictures(channels)
    changed = False
    for amount in signed_levels(name):
        result = apply_operation(x, torch.full((len(x),), OPERATIONS[name]), torch.full((len(x),), amount)).numpy()
        expected = np.stack([from_pillow(PILLOW[name](to_pillow(image), amount)) for image in x])
        assert result.dtype == np.uint8
        difference = np.abs(result.astype(int) - expected)
        if name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
            assert (difference > 0).mean() < 0.005, amount  # Pillow steps in fixed point, so a tie may fall elsewhere
        else:
            # Differences of one are rounding: Pillow's grey values and stretches are not exact.
            assert difference.max() <= (2 if name in ("Color", "Contrast") else 1), amount
            assert (difference > 0).mean() < 0.02, amount
        changed |= bool((result != x.numpy()).any())
    assert changed != (name == "Color" and channels == 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_gets_its_own_operation(channels):
    count = len(OPERATIONS) + 1
    x = pictures(channels)[:1].expand(count, -1, -1, -1)
    amounts = torch.tensor([magnitude(name, 7) for name in OPERATIONS] + [0.5])
    together = apply_operation(x, torch.arange(count), amounts)
    for index in range(count):
        alone = apply_operation(x[:1], torch.tensor([index]), amounts[index : index + 1])
        assert torch.equal(together[index], alone[0])
    assert torch.equal(together[IDENTITY], x[0])


def test_the_input_is_left_alone():
    x = pictures(3)
    before = x.clone()
    auto_augment(x, CIFAR10_POLICY, seeded())
    assert torch.equal(x, before)


def test_magnitudes():
    assert [magnitude("Posterize", level) for level in (0, 7, 9)] == [8, 5, 4]
    assert magnitude("Solarize", 0) == 256
    assert magnitude("Solarize", 9) == 0
    assert magnitude("Rotate", 3) == pytest.approx(10)
    assert magnitude("TranslateX", 9) * 331 == pytest.approx(150)
    assert magnitude("Invert", 5) == 0


@POLICIES
def test_draws_follow_the_policy(policy):
    """How often each operation acts, and with which magnitudes, in 40,000 draws."""
    assert len(policy) == 25
    count = 40_000
    operations, amounts = draw_steps(policy, count, seeded())
    for place in range(2):
        expected, values = Counter(), {}
        for sub_policy in policy:
            name, probability, level = sub_policy[place]
            expected[name] += probability / 25
            size = magnitude(name, level)
            signed = RANGES[name] is not None and RANGES[name][2]
            values.setdefault(name, set()).update({size, -size} if signed else {size})
        for name, index in OPERATIONS.items():
            acts = operations[:, place] == index
            assert acts.float().mean().item() == pytest.approx(expected[name], abs=0.01)
            if acts.any():
                amounts_here = set(amounts[acts, place].double().numpy().round(4) + 0.0)
                assert amounts_here <= {round(value, 4) for value in values[name]} | {0.0}
                assert len(amounts_here) == len({round(value, 4) for value in values[name]})
    signs = amounts[operations == OPERATIONS["TranslateY" if policy is CIFAR10_POLICY else "Rotate"]].sign()
    assert signs.mean().abs() < 0.05
    assert set(signs.tolist()) == {-1.0, 1.0}


def test_the_policy_for_imagenet_is_that_of_the_publication():
    """How often each operation stands in it, and its extremes."""
    steps = [step for sub_policy in IMAGENET_POLICY for step in sub_policy]
    counts = {"Equalize": 17, "Rotate": 6, "Color": 6, "Solarize": 7, "Posterize": 5, "Invert": 3,
              "AutoContrast": 2, "Contrast": 2, "Sharpness": 1, "ShearX": 1}  # fmt: skip
    assert Counter(name for name, _, _ in steps) == counts
    assert sum(probability for _, probability, _ in steps) == pytest.approx(31.0)
    assert [sum(level for name, _, level in steps if name == operation) for operation in ("Posterize", "Rotate")] == [
        32,
        45,
    ]


@POLICIES
def test_one_image_through_its_two_steps(policy):
    x = pictures(3)
    operations, amounts = draw_steps(policy, len(x), seeded(4))
    names = list(OPERATIONS)
    result = auto_augment(x, policy, seeded(4)).numpy()
    assert (operations != IDENTITY).any()
    for image, steps, sizes, got in zip(x, operations.tolist(), amounts.tolist(), result, strict=True):
        picture = to_pillow(image)
        for step, size in zip(steps, sizes, strict=True):
            picture = picture if step == IDENTITY else PILLOW[names[step]](picture, size)
        assert (np.abs(got.astype(int) - from_pillow(picture)) > 2).mean() < 0.02
