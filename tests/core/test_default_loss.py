"""The loss that α learns by where the user passes none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from aanets_plugin import BilevelStrategy, ConfigurationError, convert_to_aanet, levels
from tests.core.alpha_setup import (
    aanet,
    alphas,
    labelled,
    learned,
    loader,
    samples,
    started,
    wander,
)
from tests.networks import DictNet, HeadOverDictNet, HeadsNet, ReturntNet, shake


def converted(network):
    torch.manual_seed(1)
    return wander(convert_to_aanet(shake(network()).double()))


# -- batches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: [x, y],
        lambda x, y: (torch.arange(len(y)), x, y),
        lambda x, y: (torch.arange(len(y)), x, y, x + 1),
        lambda x, y: (x, y, x + 1),
        lambda x, y: (x, y, torch.zeros(len(y), dtype=torch.int64)),
        lambda x, y: {"image": x, "label": y},
        lambda x, y: {"y": y, "x": x, "task": 3},
        lambda x, y: {"inputs": x, "targets": y},
    ],
    ids=["list", "index", "index and more", "not augmented", "task", "image", "x", "inputs"],
)
def test_common_forms_of_batches_are_understood(form):
    actual = learned([form(x, y) for x, y in loader()])
    assert torch.equal(actual, learned(loader()))
    other = learned([form(x, (y + 1) % 5) for x, y in loader()])
    assert not torch.equal(other, actual)


def test_a_batch_that_is_not_understood_shows_the_loss_function_to_write():
    with pytest.raises(ConfigurationError, match=r"def loss_fn\(model, batch\):.*eval mode"):
        started(aanet()).after_epoch([{"pixels": samples()[0], "label": samples()[1]}])


@pytest.mark.parametrize(
    ("balanced", "form", "hint"),
    [
        (lambda x, y: (x, y), "a Tensor:", r"in a list: \[\(x, y\)\]"),
        (lambda x, y: [(x.numpy(), y.numpy())], "a tuple of ndarray, ndarray:", "torch.as_tensor"),
        (lambda x, y: [(x, y.tolist())], "a tuple of Tensor, list:", "def loss_fn"),
    ],
    ids=["one batch without a list", "numpy", "list of labels"],
)
def test_a_batch_that_is_not_understood_is_described(balanced, form, hint):
    bilevel = started(aanet())
    before = alphas(bilevel.model)
    with pytest.raises(ConfigurationError, match=f"(?s)balanced batch is {form}.*{hint}"):
        bilevel.after_epoch(balanced(*samples()))
    assert torch.equal(alphas(bilevel.model), before)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_may_be_integers_of_any_size(dtype):
    assert torch.equal(learned([(x, y.to(dtype)) for x, y in loader()]), learned(loader()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_labels_that_are_no_integers_are_refused(dtype):
    batches = [(x, y.to(dtype)) for x, y in loader()]
    with pytest.raises(ConfigurationError, match=rf"are {dtype}: must be integers.*y\.long\(\)"):
        started(aanet()).after_epoch(batches)


# -- outputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "read"),
    [
        (HeadOverDictNet, lambda outputs: outputs["logits"]),
        (HeadsNet, lambda outputs: torch.cat(outputs, dim=1)),
    ],
)
def test_common_forms_of_outputs_are_understood(network, read):
    def shifted(model, batch):
        return F.cross_entropy(read(model(batch[0])).roll(1, 1), batch[1])

    actual = learned(loader(), model=converted(network))
    explicit = learned(
        loader(),
        model=converted(network),
        loss_fn=lambda m, b: F.cross_entropy(read(m(b[0])), b[1]),
    )
    assert torch.equal(actual, explicit)
    assert not torch.equal(actual, learned(loader(), model=converted(network), loss_fn=shifted))


class LogitsAndFeatures(ReturntNet):
    def forward(self, x):
        return super().forward(x, returnt="both")


@pytest.mark.parametrize(("network", "given"), [(LogitsAndFeatures, "tuple"), (DictNet, "dict")])
def test_outputs_that_are_not_logits_show_the_loss_function_to_write(network, given):
    with pytest.raises(ConfigurationError, match=f"returns a {given}: must be logits") as error:
        started(converted(network)).after_epoch(loader())
    assert "def loss_fn(model, batch):" in str(error.value)


# -- classes that were not seen ------------------------------------------------------------------


def three_of_five():
    x, y = samples(12)
    return TensorDataset(x, torch.tensor([0, 1, 3])[y % 3])


def over_columns(columns):
    """The loss over some logits, with labels that count these alone."""
    place = {label: number for number, label in enumerate(columns)}

    def loss_fn(model, batch):
        labels = torch.tensor([place[label] for label in batch[1].tolist()])
        return F.cross_entropy(model(batch[0])[:, columns], labels)

    return loss_fn


def test_logits_of_classes_that_the_balanced_data_lack_are_left_out():
    """Also in a batch that has only some of the classes."""
    actual = learned(DataLoader(three_of_five(), 2))
    seen = learned(DataLoader(three_of_five(), 2), loss_fn=over_columns([0, 1, 3]))
    assert torch.allclose(actual, seen, rtol=0, atol=1e-12)  # sums in another order
    everything = learned(DataLoader(three_of_five(), 2), loss_fn=labelled)
    assert (actual - everything).abs().max() > 1e-4


class Mapped(Dataset):
    """Raw labels in `targets`, other ones in the items, as a target_transform makes them."""

    def __init__(self, data):
        self.data, self.targets = data, [7] * len(data)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


@pytest.mark.parametrize("kind", ["list", "mapped labels"])
def test_without_known_classes_all_logits_count(kind):
    data = DataLoader(three_of_five(), 2)
    batches = list(data) if kind == "list" else DataLoader(Mapped(three_of_five()), 2)
    assert torch.equal(learned(batches), learned(data, loss_fn=labelled))


# -- losses that say nothing about α ---------------------------------------------------------------


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda model, batch: F.cross_entropy(model(batch[0]).detach(), batch[1]),
        lambda model, batch: F.cross_entropy(other(batch[0]), batch[1]),
        lambda model, batch: 3.0,
    ],
    ids=["detached", "another model", "a number"],
)
def test_a_loss_without_the_backbone_says_what_is_wrong(loss_fn, official):
    model = aanet()
    make = BilevelStrategy.official if official else BilevelStrategy
    bilevel = make(model, base_phase=False, loss_fn=loss_fn)
    bilevel.begin_phase()
    before = alphas(model)
    with pytest.raises(ConfigurationError, match=r"α of layer1, layer2, layer3.*a CifarResNet"):
        bilevel.after_epoch(loader())
    assert torch.equal(alphas(model), before)


def other(x):
    return torch.nn.Linear(3, 5).double()(x.mean((2, 3)))


def test_a_level_that_the_loss_does_not_use_is_named():
    def early(model, batch):
        return model.layer1(F.relu(model.bn1(model.conv1(batch[0])))).square().mean()

    with pytest.raises(ConfigurationError, match=r"α of layer2, layer3\."):
        started(aanet(), loss_fn=early).after_epoch(loader())


def test_an_error_in_the_loss_function_names_the_model_that_it_got():
    def for_the_whole_network(model, batch):
        return F.cross_entropy(model(batch[0])["logits"], batch[1])

    bilevel = started(converted(DictNet), loss_fn=for_the_whole_network)
    with pytest.raises(KeyError, match="logits") as error:
        bilevel.after_epoch(loader())
    if hasattr(error.value, "add_note"):
        assert "passed to BilevelStrategy, a DictNet, in eval mode" in error.value.__notes__[0]


# -- new classes only ----------------------------------------------------------------------------


def classes(*labels):
    x, y = samples(8)
    return DataLoader(TensorDataset(x, torch.tensor(labels)[y % len(labels)]), 4)


def test_balanced_data_without_any_old_class_are_noticed():
    bilevel = started(aanet())
    bilevel.after_epoch(classes(0, 1))
    bilevel.end_phase()
    bilevel.begin_phase()
    with pytest.warns(UserWarning, match="phase 1 have no class of an earlier phase"):
        bilevel.after_epoch(classes(2, 3))
    bilevel.after_epoch(classes(2, 3))  # once in a phase
    bilevel.end_phase()
    bilevel.begin_phase()
    bilevel.after_epoch(classes(0, 4))  # the control


def test_the_base_phase_shows_which_classes_are_old():
    bilevel = BilevelStrategy(aanet())
    bilevel.begin_phase()
    bilevel.after_epoch(classes(0, 1))
    bilevel.end_phase()
    bilevel.begin_phase()
    assert levels(bilevel.model)[0].base_frozen
    with pytest.warns(UserWarning, match="α learns on new classes only"):
        bilevel.after_epoch(lambda: classes(2, 3))
