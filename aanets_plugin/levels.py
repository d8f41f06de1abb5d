"""AdaptiveLevel: the branches of one residual level and their aggregation weights α.

Names in a converted model's state_dict, for a stage called `layer1`:

    layer1.branches.0.*      the plastic branch, under the names the stage had
    layer1.branches.1.*      the next branch; the last one is the stable branch
    layer1.branches.1.*.phi  φ of a frozen kernel, beside its `weight`
    layer1.alpha             α, one weight per branch

While θ_base is being trained there is neither `branches.1` nor `alpha`. A stem keeps its names
(`conv1.weight`, and `conv1.phi` where it is scaled), except under stem="paired", where it is
`conv1.branches.0.*`, `conv1.branches.1.*`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.callable_module import call_as
from aanets_plugin.scaling import RULES, release


class Branches(nn.Module):
    """Copies of one module side by side, each learning as its entry of `blocks` says.

    Until θ_base is frozen there is one branch only, the module itself, and all of it learns.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[str]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.branches = nn.ModuleList([module])
        self.base_frozen = False
        self.training = module.training
        # Whether a branch writes into its input: found out in the first forward.
        self._writes_input: bool | None = None

    @property
    def plastic(self) -> nn.Module:
        """The first branch: before θ_base is frozen, the only one."""
        return self.branches[0]

    @property
    def stable(self) -> nn.Module:
        """The last branch: before θ_base is frozen, the only one."""
        return self.branches[-1]

    def copies(self) -> list[nn.Module]:
        """What `freeze_base` adds to the plastic branch. Changes nothing."""
        # Hosts cache activations on their modules, which deepcopy refuses to copy.
        cached = [v for m in self.plastic.modules() for v in vars(m).values()]
        detached = {id(v): v.detach() for v in cached if isinstance(v, Tensor) and v.grad_fn}
        return [copy.deepcopy(self.plastic, dict(detached)) for _ in self.blocks[1:]]

    def freeze_base(self, copies: list[nn.Module] | None = None) -> None:
        self.branches.extend(self.copies() if copies is None else copies)
        for branch, block in zip(self.branches, self.blocks, strict=True):
            RULES[block](branch)
        self.base_frozen = True

    def thaw_base(self) -> None:
        del self.branches[1:]
        release(self.plastic, training=self.training)
        self.base_frozen = False

    def outputs(self, inputs: Sequence[Tensor], args: tuple[Any, ...], kwargs: Any) -> list[Any]:
        """Run each branch on its input. No branch sees what another one wrote into it."""
        outputs: list[Any] = []
        for branch, x in zip(self.branches, inputs, strict=True):
            if len(outputs) == len(inputs) - 1:
                outputs.append(branch(x, *args, **kwargs))
            elif self._writes_input is False:
                # A view, so that autograd adds up in the same order as with a copy.
                outputs.append(branch(x.view_as(x), *args, **kwargs))
            else:
                outputs.append(self._watched(branch, _clone(x), args, kwargs))
        return outputs

    def _watched(self, branch: nn.Module, own: Tensor, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a branch on a copy of its own; the first time, see whether it writes into it."""
        if torch.compiler.is_compiling():
            return branch(own, *args, **kwargs)
        version = own._version
        output = branch(own, *args, **kwargs)
        if self._writes_input is None:
            self._writes_input = own._version != version
        return output

    def extra_repr(self) -> str:
        return f"blocks={'+'.join(self.blocks)}"


class AdaptiveLevel(Branches):
    """One residual level: x = Σ_b α_b · branch_b(x) (Eq. 3). Stands where the stage stood.

    `alpha` is a buffer with one weight per branch, or None while θ_base is being trained.
    Iterating over a level gives the level itself, once: `for block in stage: x = block(x)` and
    `nn.Sequential(*stage)` go on computing what the stage computes, with every branch in it.
    """

    alpha: Tensor | None

    def __init__(
        self,
        name: str,
        stage: nn.Module,
        blocks: Sequence[str],
        initial_alpha: Sequence[float],
        *,
        after_paired_stem: bool = False,
    ) -> None:
        super().__init__(stage, blocks)
        self.name = name
        self.initial_alpha = tuple(initial_alpha)
        self.after_paired_stem = after_paired_stem
        self.register_buffer("alpha", None)

    def freeze_base(self, copies: list[nn.Module] | None = None) -> None:
        """θ_base is what the plastic branch is now: build the others from it, with φ = 1."""
        super().freeze_base(copies)
        tensors = itertools.chain(self.plastic.parameters(), self.plastic.buffers())
        like: Tensor = next(tensor for tensor in tensors if tensor.is_floating_point())
        self.alpha = torch.tensor(self.initial_alpha, dtype=like.dtype, device=like.device)

    def thaw_base(self) -> None:
        """Back to the plastic branch alone, all of it learning."""
        super().thaw_base()
        self.alpha = None

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self.branches) == 1:
            return self.plastic(x, *args, **kwargs)
        inputs = split(x, len(self.branches)) if self.after_paired_stem else self._same(x)
        assert self.alpha is not None
        return aggregate(self.outputs(inputs, args, kwargs), self.alpha)

    def _same(self, x: Any) -> list[Any]:
        return [x] * len(self.branches)

    def __getitem__(self, index: int) -> nn.Module:
        """A block of the plastic branch, e.g. `net.layer4[-1]` as a Grad-CAM target."""
        if not isinstance(index, int):
            raise TypeError(
                f"{self.name}[{index!r}]: a level gives single blocks of its plastic branch; "
                f"a slice would leave out the stable one. Call the level, or look in .branches."
            )
        return self.plastic[index]  # type: ignore[index,no-any-return]

    def __setitem__(self, index: int, block: nn.Module) -> None:
        if self.base_frozen:
            raise TypeError(
                f"{self.name}[{index!r}] = …: θ_base is frozen, the branches would differ. "
                f"Change the stage before the conversion, or while the base phase lasts."
            )
        self.plastic[index] = block  # type: ignore[operator]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter((self,))

    def __setattr__(self, name: str, value: Any) -> None:
        # A flag that the host sets on its stages (timm's `grad_checkpointing`) is for the branches.
        branches = self.__dict__.get("_modules", {}).get("branches")
        if branches and name not in self.__dict__ and name in branches[0].__dict__:
            for branch in branches:
                setattr(branch, name, value)
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        alpha = "base phase" if self.alpha is None else [round(a, 4) for a in self.alpha.tolist()]
        return f"{self.name}, {super().extra_repr()}, alpha={alpha}"


class PairedStem(Branches):
    """A piece of the stem, once per branch, for a host whose own forward calls it as one module.

    The branches travel side by side in the batch dimension: what the host does in between
    (ReLU, pooling) acts on each sample alone. The first level takes them apart again.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[str], *, first: bool) -> None:
        super().__init__(module, blocks)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        count = len(self.branches)
        if count == 1:
            return self.plastic(x)  # type: ignore[no-any-return]
        return torch.cat(self.outputs([x] * count if self.first else split(x, count), (), {}))


def _clone(x: Tensor) -> Tensor:
    """A copy that counts the writes into it, which tensors made in inference mode do not."""
    if not torch.compiler.is_compiling() and x.is_inference():
        with torch.inference_mode(False):
            return x.clone()
    return x.clone()


def split(x: Tensor, count: int) -> list[Tensor]:
    """The branches' shares of a batch that a paired stem put together."""
    size = x.shape[0] // count
    return [x[i * size : (i + 1) * size] for i in range(count)]


def aggregate(outputs: Sequence[Any], alpha: Tensor) -> Any:
    """Σ_b α_b · outputs_b for every tensor in a tensor, tuple, list or dict (Eq. 3)."""
    first = outputs[0]
    if isinstance(first, Tensor):
        if not first.is_floating_point():
            return first
        total = first * alpha[0]
        for b in range(1, len(outputs)):
            total = torch.addcmul(total, outputs[b], alpha[b])
        return total
    if isinstance(first, dict):
        return type(first)((k, aggregate([o[k] for o in outputs], alpha)) for k in first)
    if isinstance(first, (tuple, list)):
        items = [aggregate(column, alpha) for column in zip(*outputs, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    return first


def levels(model: nn.Module) -> list[AdaptiveLevel]:
    """The adaptive levels of a converted model in forward order; empty for a plain one."""
    return [module for module in model.modules() if isinstance(module, AdaptiveLevel)]


call_as(levels)
