"""Views: the recipe's steps in order, determinism, and nothing that waits for the device."""

import ast
import inspect
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashback.batches import augment, autoaugment, views
from flashback.batches.autoaugment import CIFAR10_POLICY, IMAGENET_POLICY, auto_augment
from flashback.batches.views import STEPS, Views, normalise
from flashback.errors import FlashbackError
from flashback.hosts.xder import strong_view

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
RECIPES = [
    (),
    ("crop", "flip"),
    ("crop", "flip", "jitter", "autoaugment", "cutout"),
    ("rrcrop", "flip"),
    ("rrcrop", "jitter", "cutout"),
    ("rrcrop", "flip", "jitter", "autoaugment-imagenet"),
]


def seeded(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def raw(count=8, channels=3, side=16):
    return torch.randint(0, 256, (count, channels, side, side), generator=seeded(9), dtype=torch.uint8)


def views_of(channels, recipe=("crop", "flip"), **options):
    return Views(MEAN[:channels], STD[:channels], recipe, **options)


@pytest.mark.parametrize("channels", [1, 3])
def test_plain_is_normalised(channels):
    x = raw(channels=channels)
    result = views_of(channels).plain(x)
    assert result.dtype == torch.float32
    for channel in range(channels):
        expected = (x[:, channel].double() / 255 - MEAN[channel]) / STD[channel]
        torch.testing.assert_close(result[:, channel].double(), expected, atol=1e-5, rtol=0)


def test_normalise_takes_floats_too():
    x = raw()
    assert torch.equal(normalise(x.float() / 255, MEAN, STD), normalise(x, MEAN, STD))


def test_wrong_number_of_channels():
    with pytest.raises(FlashbackError, match="images with 1 channels need as many means and deviations, not 3 and 3"):
        views_of(3).plain(raw(channels=1))


def test_unknown_step():
    with pytest.raises(FlashbackError, match="unknown augmentation 'flop'; did you mean 'flip'"):
        views_of(3, ("crop", "flop"))


def test_empty_recipe_is_plain_and_draws_nothing():
    generator = seeded()
    before = generator.get_state()
    assert torch.equal(views_of(3, ()).weak(raw(), generator), views_of(3).plain(raw()))
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("recipe", [("crop", "flip"), ("flip", "crop")])
def test_crop_and_flip(recipe):
    generator = seeded()
    x = augment.random_flip(augment.random_crop(raw(), 4, generator), generator)
    assert torch.equal(views_of(3, recipe).weak(raw(), seeded()), normalise(x, MEAN, STD))


def test_the_longest_recipe_in_its_order():
    """Jitter and AutoAugment act on whole numbers, Cutout before normalisation (its zeros are black, not mean)."""
    generator = seeded()
    x = augment.random_flip(augment.random_crop(raw(), 4, generator), generator)
    x = auto_augment(augment.brightness_jitter(x, generator), CIFAR10_POLICY, generator)
    x = augment.cutout(x.float() / 255, 16, generator)
    recipe = ("cutout", "autoaugment", "jitter", "flip", "crop")
    assert torch.equal(views_of(3, recipe).weak(raw(), seeded()), normalise(x, MEAN, STD))


def test_the_recipe_for_imagenet_has_its_own_policy():
    """Resized views are whole numbers again before AutoAugment."""
    generator = seeded()
    x = augment.random_resized_crop(raw(), (16, 16), (0.08, 1.0), (3 / 4, 4 / 3), generator)
    x = auto_augment(x, IMAGENET_POLICY, generator)
    assert torch.equal(views_of(3, ("rrcrop", "autoaugment-imagenet")).weak(raw(), seeded()), normalise(x, MEAN, STD))


def test_strong():
    generator = seeded()
    x = augment.random_flip(raw().float() / 255, generator)
    x = augment.random_resized_crop(x, (16, 16), (0.2, 1.0), (3 / 4, 4 / 3), generator)
    x = augment.color_jitter(x, 0.4, 0.4, 0.4, 0.1, generator, 0.8)
    x = augment.greyscale(x, 0.2, generator)
    assert torch.equal(strong_view(views_of(3), raw(), seeded()), normalise(x, MEAN, STD))


@pytest.mark.parametrize("recipe", [("rrcrop", "flip"), ("crop", "flip"), ()])
def test_size(recipe):
    views = views_of(3, recipe, size=10)
    x = raw(side=16)
    assert views.weak(x, seeded()).shape == strong_view(views, x, seeded()).shape == (8, 3, 10, 10)
    assert torch.equal(views.plain(x), views_of(3).plain(x[:, :, 3:13, 3:13]))


@pytest.mark.parametrize("recipe", [("rrcrop", "flip"), ("crop", "flip"), ()])
def test_images_that_are_not_square_keep_their_shape(recipe):
    x = raw(side=16)[:, :, 2:14]
    views = views_of(3, recipe)
    assert (
        views.plain(x).shape == views.weak(x, seeded()).shape == strong_view(views, x, seeded()).shape == (8, 3, 12, 16)
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("recipe", [*RECIPES[1:], "strong"])
def test_views_follow_the_generator_and_differ_between_images(recipe, channels):
    views = views_of(channels, () if recipe == "strong" else recipe)
    view = partial(strong_view, views) if recipe == "strong" else views.weak
    x = raw(channels=channels)[:1].expand(8, -1, -1, -1).contiguous()
    generator = seeded()
    first, second = view(x, generator), view(x, generator)
    assert torch.equal(view(x, seeded()), first)
    assert not torch.equal(first, second)
    assert len(first.unique(dim=0)) > 2
    assert first.isfinite().all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_shapes_never_depend_on_values(recipe):
    """Tensors without values go through: any wait for the device or shape that depends on values would raise."""
    views = views_of(3, recipe)
    views.weak(raw(), seeded())  # makes the constants, as warm-up steps do before a capture
    strong_view(views, raw(), seeded())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(raw())
        assert views.weak(x, seeded()).shape == strong_view(views, x, seeded()).shape == views.plain(x).shape == x.shape


@pytest.mark.parametrize("module", [augment, autoaugment, views])
def test_nothing_waits_for_the_device(module):
    called = {node.attr for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Attribute)}
    assert called.isdisjoint({"item", "tolist", "cpu", "numpy", "nonzero", "cuda", "manual_seed"})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("recipe", RECIPES)
def test_capture(recipe):
    """A captured graph gives, replay after replay, what eager calls give from the same generator state."""
    views = views_of(3, recipe)
    x = raw(64, side=32).cuda()
    generator = seeded(1, "cuda")

    def both():
        return views.weak(x, generator), strong_view(views, x, generator)

    eager = [both() for _ in range(3)]
    generator.manual_seed(1)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        captured = both()
    for weak, strong in eager:
        graph.replay()
        assert torch.equal(captured[0], weak)
        assert torch.equal(captured[1], strong)


@pytest.mark.parametrize(
    ("shape", "size", "padding"),
    [
        ((12, 12), None, 4),
        ((28, 28), None, 4),
        ((32, 32), None, 4),
        ((64, 64), None, 4),
        ((64, 64), 48, 4),
        ((65, 65), None, 8),
        ((96, 96), None, 12),
        ((128, 256), None, 16),
        ((256, 256), None, 32),
        ((256, 256), 224, 28),
        ((256, 256), 64, 4),
        ((80, 6), None, 4),
    ],
)
def test_large_images_are_cropped_as_small_ones_are(shape, size, padding):
    """Up to 64 pixels with the padding of CIFAR and Tiny ImageNet, beyond that with an eighth of what is seen."""
    x = torch.randint(1, 256, (6, 1, *shape), generator=seeded(2), dtype=torch.uint8)
    centre = x if size is None else augment.centre_crop(x, size)
    expected = augment.random_crop(centre, padding, seeded())
    views = views_of(1, ("crop",), size=size)
    assert torch.equal(views.weak(x, seeded()), normalise(expected, MEAN[:1], STD[:1]))
    assert not torch.equal(views.weak(x, seeded()), views.plain(x))


def test_every_step_is_in_some_recipe_here():
    assert {name for recipe in RECIPES for name in recipe} == set(STEPS)
