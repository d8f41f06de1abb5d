"""The loss of a batch as a run computes it: one forward of each network, and no more."""

from __future__ import annotations

import pytest
import torch

from aanets_plugin import convert_to_aanet
from aanets_plugin.baselines import LUCIR, CifarResNet, ICaRL, Mnemonics, PODNet
from aanets_plugin.baselines.lifecycle import (
    HeadLoss,
    MethodLoss,
    build_network,
    features_of,
    fine_tuning,
    teacher_of,
)

METHODS = [ICaRL(), LUCIR(), PODNet(), Mnemonics()]
BY_NAME = {"argvalues": METHODS, "ids": lambda method: method.name}


def networks(method, converted=False):
    """A network of four classes, grown to six, and its teacher."""
    net = build_network(lambda: CifarResNet(1, 4), method, 4, (3, 16, 16))
    if converted:
        convert_to_aanet(net.backbone)
    teacher = teacher_of(net)
    net.fc = method.grow(net.fc, 2)
    return net, teacher


def batch():
    return torch.randn(6, 3, 16, 16), torch.arange(6)


def count_forwards(net):
    calls = []
    net.backbone.register_forward_hook(lambda _, __, out: calls.append(out.requires_grad))
    return calls


@pytest.mark.parametrize("converted", [False, True], ids=["plain", "AANets"])
@pytest.mark.parametrize("method", **BY_NAME)
def test_student_and_teacher_run_once_per_batch_and_the_teacher_without_a_graph(method, converted):
    net, teacher = networks(method, converted)
    student_calls, teacher_calls = count_forwards(net), count_forwards(teacher)

    loss = MethodLoss(method, net, teacher)(*batch())

    assert student_calls == [True]
    assert teacher_calls == [False]
    assert loss.requires_grad


@pytest.mark.parametrize("method", **BY_NAME)
def test_the_teacher_is_neither_learned_nor_part_of_the_loss_module(method):
    net, teacher = networks(method)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    loss = MethodLoss(method, net, teacher)
    own = {id(parameter) for parameter in net.parameters()}

    loss.train()(*batch()).backward()

    assert {id(parameter) for parameter in loss.parameters()} == own
    assert not teacher.training
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


@pytest.mark.parametrize("method", **BY_NAME)
def test_a_teacher_changes_the_loss(method):
    net, teacher = networks(method)
    x, y = batch()
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        with_teacher, without = (MethodLoss(method, net, t)(x, y) for t in (teacher, None))

    assert abs(with_teacher - without) > 1e-3


def test_the_loss_of_the_head_leaves_the_backbone_and_its_statistics_alone():
    method = PODNet()
    net, _ = networks(method)
    before = {name: value.clone() for name, value in net.backbone.state_dict().items()}
    calls = count_forwards(net)
    loss = HeadLoss(method, net)

    loss.train()(*batch()).backward()

    assert calls == [False]
    assert all(torch.equal(v, before[name]) for name, v in net.backbone.state_dict().items())
    assert all(parameter.grad is None for parameter in net.backbone.parameters())
    assert net.fc.weights[-1].grad.count_nonzero()

    MethodLoss(method, net, None).train()(*batch())
    changed = net.backbone.state_dict()
    assert not all(torch.equal(value, before[name]) for name, value in changed.items())


# Fine-tuning


def test_fine_tuning_frees_the_head_in_its_block_alone():
    method = PODNet(finetune_epochs=2, finetune_lr=0.1)
    net, _ = networks(method)
    flags = [parameter.requires_grad for parameter in net.fc.parameters()]
    assert not all(flags)

    def interrupted():
        with fine_tuning(method, net) as (loss, rates):
            assert all(parameter.requires_grad for parameter in net.fc.parameters())
            assert set(loss.parameters()) == set(net.fc.parameters())
            assert rates == pytest.approx([0.1, 0.05])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    assert [parameter.requires_grad for parameter in net.fc.parameters()] == flags


def test_a_method_without_fine_tuning_has_no_epochs():
    net, _ = networks(LUCIR())
    with fine_tuning(LUCIR(), net) as (_, rates):
        assert rates == []


def test_features_of_batches_are_in_order_and_leave_the_network_as_it_was():
    net, _ = networks(ICaRL())
    x, y = batch()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    batches = [(x[:4], y[:4], "task"), (x[4:], y[4:], "task")]
    features, labels, flipped = features_of(net.train(), batches, flip=True)

    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(labels, y)
    with torch.no_grad():
        expected = [net.eval().features(images) for images in (x, x.flip(-1))]
    torch.testing.assert_close([features, flipped], expected)
    assert not torch.allclose(features, flipped)
    assert features_of(net, batches).flipped is None
