"""The plasticity loss: what it compares, and on which images each teacher acts."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flashback import Flashback, FlashbackError, Trainer, train
from flashback.hosts import HOSTS, Stage
from flashback.knowledge import ModelKnowledge, ReplayedTargets, Support, cached_outputs, squared_error
from helpers import forgetting, quick_flashback, quick_host, small_settings, tiny_benchmark
from test_plugin import batch_of, in_phase_2

WEIGHING = [
    name for name in HOSTS if HOSTS[name].supports_image_weights and HOSTS[name].__module__.startswith("flashback.")
]


def terms_of(method: Flashback, phase_2: Stage) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """A step of phase 2 on new images and exemplars, its loss terms, and those of the host alone."""
    phase_2.before_epoch(0)
    step = phase_2.forward(batch_of(method.host, phase_2))
    return step, dict(phase_2.losses(step)), dict(method.host.stages()[0].losses(step))


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """The binary cross-entropy of each image, a mean over columns, in float64."""
    p, q = targets.double().sigmoid(), logits.double().sigmoid()
    return -(p * q.log() + (1 - p) * (1 - q).log()).mean(dim=1)


# ---------------------------------------------------------------- images: all, new, divided


@pytest.mark.parametrize("images", ["all", "new", "divided"])
def test_which_images_each_teacher_has(images: str) -> None:
    """A mean over the whole batch, so that an image is pulled as hard as without the setting, or not at all."""
    method, phase_2 = in_phase_2("icarl", flashback__alpha=0.25, flashback__images=images)
    step, terms, host_terms = terms_of(method, phase_2)
    new = step.batch.slots < 0
    assert 0 < int(new.sum()) < len(new)
    assert torch.equal(step.batch.y >= 2, new)
    assert isinstance(method.plastic, ModelKnowledge)
    assert isinstance(method.host.stable, ModelKnowledge)
    plastic, stable = (knowledge(step.batch.x).logits for knowledge in (method.plastic, method.host.stable))
    lp = cross_entropies(step.output.logits[:, 2:5], plastic[:, 2:5])
    ls = cross_entropies(step.output.logits[:, :2], stable[:, :2])
    counted = lp if images == "all" else lp * new
    torch.testing.assert_close(terms["plasticity"].double(), 0.25 * counted.sum() / len(new), rtol=1e-5, atol=1e-7)
    stability = ls * ~new if images == "divided" else ls
    torch.testing.assert_close(terms["stability"].double(), 2 / 5 * stability.sum() / len(new), rtol=1e-5, atol=1e-7)
    assert torch.equal(terms["stability"], host_terms["stability"]) == (images != "divided")
    assert torch.equal(terms["task"], host_terms["task"])


def test_the_weight_of_stability_acts_on_exemplars_too() -> None:
    plain, heavy = (
        terms_of(*in_phase_2("icarl", flashback__images="divided", training__stability=weight))[1]["stability"]
        for weight in (1.0, 3.0)
    )
    torch.testing.assert_close(heavy, 3 * plain)


def test_without_a_plastic_teacher_the_stable_one_has_all_images() -> None:
    method, phase_2 = in_phase_2("icarl", flashback__alpha=0.0, flashback__images="divided")
    _, terms, host_terms = terms_of(method, phase_2)
    assert torch.equal(terms["stability"], host_terms["stability"])


@pytest.mark.parametrize("name", WEIGHING)
def test_hosts_that_weigh_images_do(name: str) -> None:
    """The mean over all images of weight times distance, against each image in a batch of its own."""
    method, phase_2 = in_phase_2(name)
    host, batch = method.host.eval(), batch_of(method.host, phase_2)
    weights = torch.linspace(0, 1, len(batch))
    support = method.support()
    with torch.no_grad():
        whole = host.distance(phase_2.forward(batch), method.plastic, replace(support, images=weights))
        alone = []
        for k in range(len(batch)):
            one = replace(batch, **{field: getattr(batch, field)[k : k + 1] for field in ("x", "y", "raw", "slots")})
            alone.append(host.distance(phase_2.forward(one), method.plastic, support))
    assert len(batch) > 5
    assert float(torch.stack(alone).std()) > 0
    torch.testing.assert_close(whole, (weights * torch.stack(alone)).mean(), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- where: all, correct, better


def expert(where: str, plastic: Tensor, stable: Tensor, labels: Tensor) -> Tensor:
    """Where the plastic knowledge counts, image by image."""
    if where == "correct":
        return torch.tensor([int(row.argmax()) == int(label) for row, label in zip(plastic, labels, strict=True)])
    shares = [knowledge.double().softmax(dim=1) for knowledge in (plastic, stable)]
    return torch.tensor([bool(p[label] > s[label]) for p, s, label in zip(*shares, labels, strict=True)])


@torch.no_grad()
def blur(plastic: ModelKnowledge) -> None:
    """Make the primary model right on some images and wrong on others."""
    for parameter in plastic.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("images", ["all", "new"])
@pytest.mark.parametrize("where", ["correct", "better"])
def test_plasticity_acts_where_the_primary_model_is_expert(where: str, images: str) -> None:
    method, phase_2 = in_phase_2("icarl", flashback__where=where, flashback__images=images, flashback__alpha=0.25)
    assert isinstance(method.plastic, ModelKnowledge)
    assert isinstance(method.host.stable, ModelKnowledge)
    blur(method.plastic)
    step, terms, host_terms = terms_of(method, phase_2)
    plastic, stable = (knowledge(step.batch.x).logits for knowledge in (method.plastic, method.host.stable))
    counted = expert(where, plastic[:, :5], stable[:, :5], step.batch.y)
    assert 0 < int(counted.sum()) < len(counted)
    counted = counted & (step.batch.slots < 0) if images == "new" else counted
    lp = cross_entropies(step.output.logits[:, 2:5], plastic[:, 2:5]) * counted
    torch.testing.assert_close(terms["plasticity"].double(), 0.25 * lp.sum() / len(lp), rtol=1e-5, atol=1e-7)
    assert torch.equal(terms["stability"], host_terms["stability"])


@pytest.mark.parametrize("where", ["correct", "better"])
@pytest.mark.parametrize(("name", "support"), [("der++", "host"), ("icarl", "memory")])
def test_targets_keep_only_the_primary_model_was_expert(name: str, support: str, where: str) -> None:
    method, phase_2 = in_phase_2(name, flashback__where=where, flashback__support=support)
    host, plastic = method.host, method.plastic
    assert isinstance(plastic, ReplayedTargets)
    assert host.memory is not None
    filled = host.memory.filled
    with torch.no_grad():  # some right, some wrong: the logits of another network
        for parameter in host.net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    method.plasticity_loss.fill(plastic)
    if name == "icarl":
        assert isinstance(host.stable, ModelKnowledge)
        stable = host.stable(host.views.plain(host.memory.images[:filled])).logits
    else:
        stable = host.memory["targets"][:filled]
    seen = slice(0, 5)
    primary = host.embed(host.memory.images[:filled], lambda output: output.logits)
    counted = expert(where, primary[:, seen], stable[:, seen], host.memory.labels[:filled])
    assert 0 < int(counted.sum()) < filled
    assert torch.equal(plastic.stamps[:filled] > 0, counted)
    assert torch.equal(plastic.stamps.abs()[:filled], host.memory.stamps[:filled])
    step = phase_2.forward(batch_of(host, phase_2))
    output, slots = host.replayed(step)
    stored = slots >= 0
    columns = method.support().columns
    errors = (output.logits[stored][:, columns] - plastic.targets[slots[stored]][:, columns]).square().mean(dim=1)
    expected = (errors * counted[slots[stored]]).sum() / int(stored.sum())
    torch.testing.assert_close(method.plasticity_loss(step, plastic), expected)


def test_stored_features_have_no_logits_to_compare_with() -> None:
    host = quick_host("der", **small_settings("der"), host__targets="embeddings")
    Flashback(host, where="correct")
    with pytest.raises(FlashbackError, match="compares with the logits of the stable model, which der does not keep"):
        Flashback(host, where="better")


# ---------------------------------------------------------------- distance: host, features


def one_minus_cos(features: Tensor, anchors: Tensor) -> Tensor:
    return torch.stack([1 - a @ b / (a.norm() * b.norm()) for a, b in zip(features, anchors, strict=True)])


@pytest.mark.parametrize(("name", "images"), [("icarl", "all"), ("icarl", "new"), ("lwf-mc", "all"), ("oewc", "all")])
def test_features_are_held_near_those_of_the_primary_model(name: str, images: str) -> None:
    settings = {"flashback__distance": "features", "flashback__images": images, "flashback__alpha": 0.25}
    method, phase_2 = in_phase_2(name, **settings)
    step, terms, host_terms = terms_of(method, phase_2)
    assert isinstance(method.plastic, ModelKnowledge)
    blur(method.plastic)
    _, terms, host_terms = terms_of(method, phase_2)
    distances = one_minus_cos(step.output.features, method.plastic(step.batch.x).features)
    assert float(distances.detach().min()) > 1e-6
    counted = distances * (step.batch.slots < 0) if images == "new" else distances
    torch.testing.assert_close(terms.pop("plasticity"), 0.25 * counted.mean(), rtol=1e-4, atol=1e-7)
    assert terms.keys() == host_terms.keys()
    assert all(torch.equal(terms[key], host_terms[key]) for key in host_terms)


@pytest.mark.parametrize(
    ("name", "support"), [("der++", "host"), ("replay", "host"), ("icarl", "memory"), ("dytox", "memory")]
)
def test_features_of_stored_images_are_held_near_those_of_the_primary_model(name: str, support: str) -> None:
    form = {"flashback__distance": "features", "flashback__support": support}
    method, phase_2 = in_phase_2(name, **form, **small_settings(name))
    host, plastic = method.host, method.plastic
    assert isinstance(plastic, ReplayedTargets)
    assert host.memory is not None
    with torch.no_grad():  # another primary model
        for parameter in host.net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    method.plasticity_loss.fill(plastic)
    primary = host.embed(host.memory.images[: host.memory.filled], lambda output: output.features)
    host.load_state_dict({**host.state_dict(), **{k: t / 2 for k, t in host.net.state_dict(prefix="net.").items()}})
    step = phase_2.forward(batch_of(host, phase_2))
    output, slots = host.replayed(step)
    stored = slots >= 0
    expected = one_minus_cos(output.features[stored], primary[slots[stored]]).mean()
    assert float(expected.detach()) > 1e-6
    torch.testing.assert_close(method.plasticity_loss(step, plastic), expected, rtol=1e-4, atol=1e-6)


def test_hosts_that_cannot_be_anchored_in_features() -> None:
    refused = set()
    for name in HOSTS:
        if HOSTS[name].has_knowledge and HOSTS[name].__module__.startswith("flashback."):
            try:
                Flashback(quick_host(name, **small_settings(name)), distance="features")
            except FlashbackError:
                refused.add(name)
    assert refused == {"afec", "caf", "pnc", "foster", "beef", "beef-compress", "der-expansion", "si"}


def test_features_let_a_host_with_other_knowledge_have_a_running_teacher() -> None:
    host = quick_host("oewc")
    Flashback(host, teacher="running", distance="features")
    with pytest.raises(FlashbackError, match="oewc keeps other plastic knowledge"):
        Flashback(host, teacher="running")


# ---------------------------------------------------------------- distance: logits


def shifted(logits: Tensor) -> Tensor:
    return torch.stack([row - row.sum() / len(row) for row in logits])


@pytest.mark.parametrize(("name", "images"), [("icarl", "all"), ("icarl", "new"), ("lwf-mc", "all"), ("lucir", "all")])
def test_each_teacher_gives_the_logits_of_its_classes(name: str, images: str) -> None:
    settings = {"flashback__distance": "logits", "flashback__images": images, "flashback__alpha": 0.25}
    method, phase_2 = in_phase_2(name, **settings)
    assert isinstance(method.plastic, ModelKnowledge)
    assert isinstance(method.host.stable, ModelKnowledge)
    blur(method.plastic)
    step, terms, own = terms_of(method, phase_2)
    plastic, stable = (knowledge(step.batch.x).logits for knowledge in (method.plastic, method.host.stable))
    targets = torch.cat([shifted(stable[:, :2]), shifted(plastic[:, 2:5])], dim=1)
    errors = ((step.output.logits[:, :5] - targets) ** 2).sum(dim=1) / 5
    counted = errors * (step.batch.slots < 0) if images == "new" else errors
    torch.testing.assert_close(terms.pop("plasticity"), 0.25 * counted.sum() / len(errors), rtol=1e-4, atol=1e-7)
    assert terms.keys() == own.keys()
    assert all(torch.equal(terms[key], own[key]) for key in own)


# ---------------------------------------------------------------- statistics of the teachers


def test_teachers_normalise_with_the_statistics_of_the_batch() -> None:
    method, phase_2 = in_phase_2("icarl", training__teacher_statistics="batch")
    host, plastic = method.host.train(), method.plastic
    assert isinstance(host.stable, ModelKnowledge)
    assert isinstance(plastic, ModelKnowledge)
    x = batch_of(host, phase_2).x
    for teacher in (host.stable, plastic):
        before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
        answers = teacher(x).logits
        assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
        stored = copy.deepcopy(teacher.model.module).eval()(x).logits
        torch.testing.assert_close(answers, copy.deepcopy(teacher.model.module).train()(x).logits)
        assert not torch.allclose(answers, stored, atol=1e-3)
    # Evaluation uses the stored statistics, and the teacher goes back to those of the batch.
    host.eval()
    torch.testing.assert_close(host.stable(x).logits, copy.deepcopy(host.stable.model.module).eval()(x).logits)
    raw = batch_of(host.train(), phase_2).raw
    one_by_one = torch.cat([host.embed(image[None], lambda output: output.logits, host.stable) for image in raw])
    torch.testing.assert_close(host.embed(raw, lambda output: output.logits, host.stable), one_by_one)
    torch.testing.assert_close(host.stable(x).logits, copy.deepcopy(host.stable.model.module).train()(x).logits)


def test_layers_that_stay_frozen_keep_stored_statistics_in_teachers_too() -> None:
    """A teacher with the weights of its student gives the same logits, so that stability has no gradient there."""
    host = quick_host("lwf-mc", training__teacher_statistics="batch")
    backbone = host.net.backbone
    for layer in backbone.layers[:2]:
        layer.requires_grad_(False)
    backbone.keep_frozen()
    assert backbone.frozen_norms == {"layers.1"}
    teacher = ModelKnowledge(host.net, batch_statistics=True).train()
    x = torch.randn(8, *host.benchmark.image_shape) * 3 + 1
    torch.testing.assert_close(teacher(x).logits, host.net.train()(x).logits)


@pytest.mark.parametrize("host", ["icarl", "lucir", "bic", "podnet"])
def test_an_anchor_on_features_that_are_frozen_is_refused(host: str) -> None:
    with pytest.raises(FlashbackError, match=r"no effect with training\.freeze_backbone=true"):
        quick_flashback(host, training__freeze_backbone=True, flashback__distance="features")


def test_an_anchor_on_features_of_trained_tokens_is_accepted() -> None:
    quick_flashback("dytox", training__freeze_backbone=True, flashback__distance="features")


def test_the_statistics_of_the_teacher_are_a_setting_of_the_host_alone_too() -> None:
    losses = []
    for statistics in ("stored", "batch"):
        method, phase_2 = in_phase_2("lwf-mc", training__teacher_statistics=statistics)
        host = method.host.train()
        losses.append(dict(host.stages()[0].losses(phase_2.forward(batch_of(host, phase_2)))))
    assert torch.equal(losses[0]["task"], losses[1]["task"])
    assert not torch.allclose(losses[0]["stability"], losses[1]["stability"])


def test_hosts_without_a_teacher_have_no_statistics_to_choose() -> None:
    taking = {"lwf", "lwf-mc", "icarl", "wa", "bic", "lucir", "podnet", "connector", "dytox"}
    taking |= {name for name in HOSTS if name.endswith("-aanets")}
    for name in HOSTS:
        settings = {**small_settings(name), "training__teacher_statistics": "batch"}
        if name in taking:
            quick_host(name, **settings)
        elif HOSTS[name].__module__.startswith("flashback."):
            with pytest.raises(FlashbackError, match=re.escape(f"copy of its network, which {name} does not")):
                quick_host(name, **settings)


def test_a_network_without_batch_norm_has_no_statistics_to_choose() -> None:
    with pytest.raises(FlashbackError, match="does nothing for a network without batch norm"):
        quick_host("lwf-mc", host__net="convit-small", training__teacher_statistics="batch")


# ---------------------------------------------------------------- merge


class Watched(Flashback):
    """Notes the primary network, and the network before and after it is merged."""

    def finish(self, main: Stage) -> None:
        assert self.plastic is not None
        primary = self.plastic.get_submodule("model.module").state_dict()
        self.primary = {key: tensor.clone() for key, tensor in primary.items()}
        self.before = {key: tensor.clone() for key, tensor in self.host.net.state_dict().items()}
        super().finish(replace(main, end=lambda: self.note(main)))

    def note(self, main: Stage) -> None:
        self.after = {key: tensor.clone() for key, tensor in self.host.net.state_dict().items()}
        main.end()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("lwf-mc", {"alpha": 0.0}), ("icarl", {"alpha": 0.5}), ("oewc", {"alpha": 0.5, "distance": "features"})],
)
def test_a_task_ends_between_the_model_and_the_primary_one(name: str, settings: dict[str, Any]) -> None:
    benchmark = tiny_benchmark((2, 3), per_class=6)
    method = Watched(quick_host(name, benchmark, **small_settings(name)), merge=0.25, **settings)
    Trainer(method, benchmark).run()
    weights = dict(method.host.net.named_parameters())
    assert any(not torch.allclose(method.before[key], method.primary[key], atol=1e-4) for key in weights)
    for key in weights:
        torch.testing.assert_close(method.after[key], 0.75 * method.before[key] + 0.25 * method.primary[key])
    batches = 18 // 8 + 1 + (name == "icarl")  # of 18 new images, and 7 to 8 exemplars
    counts = [int(tensor) for key, tensor in method.after.items() if key.endswith("num_batches_tracked")]
    assert set(counts) == {batches}
    assert any(
        not torch.equal(method.after[key], method.before[key]) for key in method.after if key.endswith("running_mean")
    )
    if name == "oewc":  # importance is measured at the merged weights
        host: Any = method.host
        assert torch.equal(host.stable.values, torch.cat([p.detach().flatten() for p in host.anchored_parameters()]))
        assert torch.equal(host.net.head.weight, method.after["head.weight"])


def test_a_merged_task_takes_the_steps_of_the_host() -> None:
    method = quick_flashback("lwf-mc", flashback__merge=0.25, flashback__alpha=0.0, training__epochs=3)
    method.enter(method.host.benchmark.tasks[1])
    assert [stage.epochs for stage in method.stages()] == [1, 2]


def test_average_and_merge_exclude_each_other() -> None:
    host = quick_host("lwf-mc", training__average=0.9)
    Flashback(host)
    with pytest.raises(FlashbackError, match="end a task on different weights; leave one of them out"):
        Flashback(host, merge=0.25)


# ---------------------------------------------------------------- knowledge that is asked more than once


def test_every_model_runs_once_in_a_step() -> None:
    method, phase_2 = in_phase_2("icarl", flashback__images="divided", flashback__where="better")
    calls = []
    for knowledge in (method.host.stable, method.plastic):
        assert isinstance(knowledge, ModelKnowledge)
        knowledge.model.register_forward_hook(lambda module, *_: calls.append(id(module)))
    terms_of_step = phase_2.losses(phase_2.forward(batch_of(method.host, phase_2)))
    assert len(calls) == len(set(calls)) == 2
    assert terms_of_step.keys() == {"task", "stability", "plasticity"}


def test_answers_are_kept_for_one_step_and_one_tensor() -> None:
    method, phase_2 = in_phase_2("icarl")
    knowledge, x = method.plastic, batch_of(method.host, phase_2).x
    assert isinstance(knowledge, ModelKnowledge)
    with cached_outputs(knowledge, None):
        first = knowledge(x)
        assert knowledge(x) is first
        assert torch.equal(knowledge(x[:2]).logits, knowledge(x[:2].clone()).logits)
    assert knowledge(x) is not first
    assert torch.equal(knowledge(x).logits, first.logits)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("lwf-mc", {"images": "new"}, "flashback.images=new needs a host that trains on new and stored images; lwf-mc"),
        ("oewc", {"images": "new"}, "flashback.images=new needs a host that trains on new and stored images; oewc"),
        ("der++", {"images": "new"}, r"in der\+\+ plasticity acts on stored images alone"),
        ("replay", {"images": "divided"}, "in replay plasticity acts on stored images alone"),
        ("icarl", {"images": "new", "support": "memory"}, "with flashback.support=memory plasticity acts on stored"),
        (
            "beef",
            {"images": "divided"},
            "images=divided scales the loss term 'stability', which beef does not have; .*=new$",
        ),
        ("oewc", {"where": "correct"}, "a logit for each class, and that of oewc does not"),
        ("foster", {"where": "correct"}, "a logit for each class, and that of foster does not"),
        ("beef", {"where": "correct", "support": "memory"}, "a logit for each class, and that of beef does not"),
        (
            "oewc",
            {"merge": 0.5},
            "flashback.merge needs plastic knowledge that is a copy .* oewc keeps other .*; leave it",
        ),
        ("icarl", {"merge": 0.5, "support": "memory"}, "flashback.merge needs .* with flashback.support=memory it is"),
        ("icarl-aanets", {"merge": 0.5}, "a host with one backbone, and icarl-aanets builds several"),
        ("foster", {"distance": "features"}, "keeps a copy of its network or trains a single one; foster does neither"),
        ("oewc", {"distance": "logits"}, "distance=logits needs .* a copy of the whole network, and oewc keeps other"),
        ("der++", {"distance": "logits"}, "distance=logits needs .* a copy of the whole network"),
        ("foster", {"distance": "logits"}, "distance=logits needs .* a copy of the whole network"),
        ("icarl", {"distance": "logits", "support": "memory"}, "with flashback.support=memory it is targets"),
        (
            "oewc",
            {"distance": "features", "where": "better"},
            "the logits of the stable model, which oewc does not keep",
        ),
        (
            "replay",
            {"where": "better"},
            "logits of the stable model, which replay does not keep; use flashback.where=corr",
        ),
    ],
)
def test_forms_are_refused_before_any_training(name: str, changes: dict[str, Any], sentence: str) -> None:
    host = quick_host(name, **small_settings(name))
    Flashback(host)
    with pytest.raises(FlashbackError, match=sentence):
        Flashback(host, **changes)


def test_a_distance_is_not_trusted_to_weigh_images_unless_its_class_says_so() -> None:
    class OtherDistance(HOSTS["icarl"]):  # type: ignore[misc]
        def distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
            return squared_error(step.output.logits, knowledge(step.batch.x).logits)

    class SameDistance(HOSTS["icarl"]):  # type: ignore[misc]
        pass

    with forgetting(HOSTS):
        HOSTS.register("other")(OtherDistance)
        HOSTS.register("same")(SameDistance)
        Flashback(quick_host("same", **small_settings("same")), images="new")
        with pytest.raises(FlashbackError, match="a distance that applies image weights, and that of other does not"):
            Flashback(quick_host("other", **small_settings("other")), images="new")


def test_images_cannot_be_divided_where_no_loss_has_the_name() -> None:
    class Unnamed(HOSTS["icarl"]):  # type: ignore[misc]
        def losses(self, step: Any) -> Any:
            return {name.replace("stability", "held"): term for name, term in super().losses(step).items()}

    with forgetting(HOSTS):
        HOSTS.register("unnamed")(Unnamed)
        method = quick_flashback("unnamed", **small_settings("unnamed"), flashback__images="divided")
        with pytest.raises(FlashbackError, match="'stability', which unnamed does not have; use"):
            train(method)
