"""Each method as an object without a training loop: its head, how it grows, its loss by hand."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.nn.functional as F

from aanets_plugin import convert_to_aanet, herd
from aanets_plugin.baselines import (
    LUCIR,
    METHODS,
    CifarResNet,
    ICaRL,
    IncrementalNet,
    Joint,
    Method,
    Mnemonics,
    PODNet,
    finetune_on_exemplars,
    icarl_loss,
    kmeans_proxies,
    lucir_loss,
    podnet_loss,
    stage_maps,
)
from aanets_plugin.baselines.lifecycle import MethodLoss
from aanets_plugin.baselines.network import without_head
from aanets_plugin.errors import ConfigurationError
from tests.networks import shake

ALL = [ICaRL(), LUCIR(), PODNet(proxies=3), Mnemonics(), Joint()]
SIZE = (3, 16, 16)

every_method = pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
plain_and_converted = pytest.mark.parametrize("converted", [False, True], ids=["plain", "aanet"])


def network(method, classes=4, converted=False):
    backbone = shake(without_head(CifarResNet(1, 10)))
    if converted:
        convert_to_aanet(backbone)
    return IncrementalNet(backbone, method.head(64, classes)).eval()


def images(count=6):
    return torch.randn(count, *SIZE)


def new_samples(first=4, classes=2, each=8):
    """Features of new classes, each about a direction of its own, and their labels."""
    labels = torch.arange(first, first + classes).repeat_interleave(each)
    return torch.randn(first + classes, 64)[labels] + 0.3 * torch.randn(len(labels), 64), labels


def student_and_teacher(method, converted=False):
    """A network with two new classes, moved away from its teacher."""
    net = network(method, converted=converted)
    teacher = copy.deepcopy(net)
    net.fc = method.grow(net.fc, 2)
    with torch.no_grad():
        for parameter in net.backbone.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return net, teacher


def scale(head):
    return head.eta if hasattr(head, "eta") else head.sigma


# Heads


@every_method
def test_a_head_has_an_output_for_each_class_and_keeps_the_old_ones_to_the_bit(method):
    net, x = network(method), images()
    with torch.no_grad():
        scale(net.fc).fill_(3.0)
    for new, classes in ((2, 6), (1, 7)):
        weight, logits = net.fc.weight.detach().clone(), net(x)
        net.fc = method.grow(net.fc, new)
        assert net(x).shape == (6, classes)
        assert net.fc.out_features == classes
        assert torch.equal(net.fc.weight[:-new], weight)
        assert scale(net.fc).item() == 3.0
        # The same products in a larger matrix.
        torch.testing.assert_close(net(x)[:, :-new], logits, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(net(x)[:, -new:], logits[:, :new])


@pytest.mark.parametrize(
    ("method", "fixed"),
    [
        (ICaRL(), False),
        (ICaRL(imprint=True), True),
        (LUCIR(), True),
        (PODNet(), True),
        (Mnemonics(), True),
    ],
    ids=repr,
)
def test_old_weights_are_fixed_where_new_ones_are_imprinted(method, fixed):
    assert method.imprints == fixed
    head = method.grow(method.grow(method.head(64, 4), 2), 3)
    features = torch.randn(5, 64)
    head(features).square().sum().backward()
    named = {name: p.grad is not None for name, p in head.named_parameters() if p.dim() > 1}
    *old, newest = named.values()
    assert newest
    assert old
    assert all(learns != fixed for learns in old)
    assert scale(head).grad is not None


def test_the_new_weights_of_icarl_are_random_whatever_the_features():
    def weights(seed, *features):
        torch.manual_seed(seed)
        return ICaRL().grow(head, 2, *features).fc2.weight

    head = ICaRL().head(64, 4)
    assert torch.equal(weights(1), weights(1, *new_samples()))
    assert not torch.equal(weights(1), weights(2))


def test_icarl_as_before_is_written_as_before():
    assert "imprint" not in ICaRL().settings()
    assert ICaRL(imprint=True).settings()["imprint"] is True


@pytest.mark.parametrize(
    "method", [LUCIR(), Mnemonics(), ICaRL(imprint=True)], ids=lambda method: method.name
)
def test_imprinted_weights_are_the_mean_directions_of_their_samples(method):
    head, (features, labels) = method.head(64, 4), new_samples()
    new = method.grow(head, 2, features, labels).fc2.weight
    length = torch.stack([row.norm() for row in head.weight]).mean()
    for row, label in zip(new, (4, 5), strict=True):
        own = [f / f.norm() for f, y in zip(features, labels, strict=True) if y == label]
        mean = torch.stack(own).mean(0)
        # float32 sums in another order
        torch.testing.assert_close(row, length * mean / mean.norm(), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(new, method.grow(head, 2).fc2.weight)


def test_the_new_proxies_of_podnet_are_the_centres_of_their_samples():
    method, (features, labels) = PODNet(proxies=3), new_samples()
    head = method.head(64, 4)
    norm = float(head.weight.detach().norm(dim=2).mean())

    def draw(seed):
        return torch.Generator().manual_seed(seed)

    expected = kmeans_proxies(features, labels, [4, 5], 3, draw(0), norm=norm)
    grown = method.grow(copy.deepcopy(head), 2, features, labels, draw(0))
    assert torch.equal(grown.weight[4:], expected)
    other = method.grow(copy.deepcopy(head), 2)
    assert other.weight.shape == grown.weight.shape
    assert not torch.allclose(other.weight[4:], expected)


# Outputs and losses


@plain_and_converted
@every_method
def test_the_logits_are_those_of_the_network(method, converted):
    net, x = network(method, converted=converted), images()
    with torch.no_grad():
        scale(net.fc).fill_(3.0)
    out = method.observe(net, x, maps=True)
    assert torch.equal(out.logits, net(x))
    assert torch.equal(out.features, net.features(x))
    torch.testing.assert_close(3.0 * out.scores, out.logits)
    assert not torch.equal(out.logits, net(x.flip(0)))


@plain_and_converted
@every_method
def test_maps_are_collected_where_the_loss_needs_them(method, converted):
    net, x = network(method, converted=converted), images()
    assert not method.observe(net, x).maps
    maps = method.observe(net, x, maps=True).maps
    assert method.needs_maps == isinstance(method, PODNet)
    shapes = [(6, 16, 16, 16), (6, 32, 8, 8), (6, 64, 4, 4)]
    assert [tuple(m.shape) for m in maps] == (shapes if method.needs_maps else [])


def literal_loss(method, net, teacher, x, y):
    """The loss function of the method's paper, called by hand."""
    features = net.features(x)
    logits, old = net(x), 4
    if isinstance(method, Joint) or (teacher is None and not isinstance(method, PODNet)):
        return F.cross_entropy(logits, y)
    if isinstance(method, ICaRL):
        return icarl_loss(logits, y, teacher(x), temperature=2.0, beta=0.25)
    if isinstance(method, LUCIR):
        options = {"scores": net.fc.scores(features), "features": features, "old": old}
        taught = teacher.features(x)
        constants = {"base": 5.0, "k": 2, "margin": 0.5, "ranking_weight": 1.0}
        return lucir_loss(logits, y, teacher_features=taught, **options, **constants)
    scores, kept = net.fc.similarities(features), {}
    if teacher is not None:
        with stage_maps(net.backbone) as maps, stage_maps(teacher.backbone) as teacher_maps:
            kept = {"features": net.features(x), "teacher_features": teacher.features(x)}
        kept |= {"maps": maps, "teacher_maps": teacher_maps}
    classes = scores.shape[1]
    new = classes if teacher is None else classes - old
    weights = {"spatial_weight": 3.0, "flat_weight": 1.0}
    return podnet_loss(scores, y, scale=net.fc.eta, seen=classes, new=new, **kept, **weights)


@plain_and_converted
@every_method
def test_the_loss_is_that_of_its_paper(method, converted):
    net, teacher = student_and_teacher(method, converted)
    x, y = images(), torch.arange(6)
    out, taught = (method.observe(n, x, maps=True) for n in (net, teacher))
    alone = method.loss(net.fc, out, y, None)
    both = method.loss(net.fc, out, y, taught)
    torch.testing.assert_close(alone, literal_loss(method, net, None, x, y))
    torch.testing.assert_close(both, literal_loss(method, net, teacher, x, y))
    assert torch.equal(alone, both) == isinstance(method, Joint)
    assert method.loss(net.fc, out, y.roll(1), taught) != both


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        (ICaRL(), ICaRL(temperature=3.0)),
        (ICaRL(), ICaRL(beta=0.5)),
        (LUCIR(), LUCIR(base=1.0)),
        (LUCIR(), LUCIR(k=1)),
        (LUCIR(), LUCIR(margin=0.1)),
        (LUCIR(), LUCIR(ranking_weight=0.0)),
        (PODNet(proxies=3), PODNet(proxies=3, spatial_weight=1.0)),
        (PODNet(proxies=3), PODNet(proxies=3, flat_weight=0.0)),
    ],
    ids=lambda method: repr(method)[:60],
)
def test_every_hyperparameter_reaches_the_loss(usual, other):
    net, teacher = student_and_teacher(usual)
    x, y = images(), torch.arange(6)
    out, taught = (usual.observe(n, x, maps=True) for n in (net, teacher))
    assert usual.loss(net.fc, out, y, taught) != other.loss(net.fc, out, y, taught)
    assert usual.loss(net.fc, out, y, None) == other.loss(net.fc, out, y, None)


@every_method
def test_no_gradient_reaches_the_teacher(method):
    net, teacher = student_and_teacher(method)
    x, y = images(), torch.arange(6)
    out, taught = (method.observe(n, x, maps=True) for n in (net, teacher))
    assert taught.features.requires_grad  # it could
    method.loss(net.fc, out, y, taught).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(p.grad is not None for p in net.parameters() if p.requires_grad)


@pytest.mark.parametrize("method", [ICaRL(), LUCIR(), Mnemonics()], ids=lambda m: m.name)
def test_a_training_step_compiles_in_one_piece(method):
    net, teacher = student_and_teacher(method, converted=True)
    step = MethodLoss(method, net, teacher)
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    x, y = images(), torch.tensor([0, 1, 2, 3, 4, 5])
    torch.testing.assert_close(compiled(x, y), step(x, y))


# Mnemonics


def test_learned_exemplars_teach_better_than_herded_ones_and_stay_in_bounds():
    """Of three classes of noisy pictures, three herded ones of each."""
    net = network(Mnemonics(), classes=3)
    labels = torch.arange(3).repeat_interleave(20)
    data = (torch.randn(3, 3, 8, 8)[labels] + 2.0 * torch.randn(60, 3, 8, 8)).clamp(-2, 2)
    with torch.no_grad():
        scale(net.fc).fill_(5.0)
        features = net.features(data)
    rows = torch.cat([20 * c + herd(features[labels == c], 3) for c in range(3)])
    herded, classes = data[rows], labels[rows]
    method = Mnemonics(refine_steps=10, refine_lr=0.05, inner_lr=0.5, inner_steps=1)
    before = copy.deepcopy(net.state_dict())
    bounds = (torch.full((3, 1, 1), -2.0), torch.full((3, 1, 1), 2.0))
    learned = method.refine(net, herded, classes, [(data, labels)], bounds)
    assert learned.shape == herded.shape
    assert learned.abs().max() <= 2.0
    free = method.refine(net, herded, classes, [(data, labels)], (-bounds[1] * 9, bounds[1] * 9))
    assert free.abs().max() > 2.0
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())

    def validation_loss(exemplars):
        tuned = copy.deepcopy(net)
        step = {"epochs": 1, "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "head": "fc"}
        finetune_on_exemplars(tuned, exemplars, classes, **step)
        with torch.no_grad():
            return F.cross_entropy(tuned(data), labels).item()

    assert validation_loss(learned) < validation_loss(herded) - 0.01
    away = (2 * herded - learned).clamp(-2, 2)  # as far in the other direction
    assert validation_loss(away) > validation_loss(learned)


# What a loop asks of a method


def test_fine_tuning_is_mnemonics_and_podnets():
    tunings = {method.name: method.fine_tuning for method in ALL}
    assert {name for name, tuning in tunings.items() if tuning} == {"podnet", "mnemonics"}
    assert PODNet(finetune_epochs=0).fine_tuning is None
    assert Mnemonics(finetune_epochs=0).fine_tuning is None


@every_method
def test_settings_are_the_name_and_all_hyperparameters(method):
    settings = json.loads(json.dumps(method.settings()))
    assert settings.pop("name") == method.name
    assert type(method)(**settings) == method
    assert METHODS.get(method.name, Joint) is type(method)


def test_a_method_without_parts_says_so():
    for call in (lambda m: m.head(4, 2), lambda m: m.grow(None, 1), lambda m: m.score(None, None)):
        with pytest.raises(NotImplementedError):
            call(Method())


# Errors


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match=r"first is class 5"):
        LUCIR().grow(LUCIR().head(64, 4), 2, *new_samples(classes=1))
    with pytest.raises(ConfigurationError, match=r"class 5 has no features"):
        PODNet().grow(PODNet().head(64, 4), 2, *new_samples(classes=1))
    method = PODNet(proxies=3)
    net, teacher = student_and_teacher(method)
    out, taught = (method.observe(n, images()) for n in (net, teacher))
    with pytest.raises(ConfigurationError, match=r"0 maps and 0 of the teacher"):
        method.loss(net.fc, out, torch.arange(6), taught)
