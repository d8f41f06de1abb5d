"""AdaptiveLevel: the branches of one residual level and their aggregation weights α.

Names in a converted model's state_dict, for a stage called `layer1`:

    layer1.branches.0.*      the plastic branch, under the names the stage had
    layer1.branches.1.*      the next branch; the last one is the stable branch
    layer1.branches.1.*.phi  φ of a frozen kernel, beside its `weight`
    layer1.alpha             α, one weight per branch

In the base phase there is neither `branches.1` nor `alpha`. A shared stem keeps its names, with
`conv1.phi` beside `conv1.weight` if it is scaled. A paired stem has `conv1.branches.0.*` and
`conv1.branches.1.*`.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.callable_module import call_as
from aanets_plugin.scaling import RULES, release


class Branches(nn.Module):
    """A module and its copies, one per entry of `blocks`, which says how each learns.

    In the base phase there is only the module itself, and all of it learns.
    """

    def __init__(self, module: nn.Module, blocks: Sequence[str]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.branches = nn.ModuleList([module])
        self.base_frozen = False
        self.training = module.training
        # Whether a branch changes its input in place. None until the first forward.
        self._writes_input: bool | None = None

    @property
    def plastic(self) -> nn.Module:
        """The first branch. In the base phase it is the only one."""
        return self.branches[0]

    @property
    def stable(self) -> nn.Module:
        """The last branch. In the base phase it is the only one."""
        return self.branches[-1]

    def copies(self) -> list[nn.Module]:
        """Return the branches that `freeze_base` adds. Changes nothing."""
        # Hosts may cache activations on their modules, which deepcopy refuses to copy.
        cached = [v for m in self.plastic.modules() for v in vars(m).values()]
        detached = {id(v): v.detach() for v in cached if isinstance(v, Tensor) and v.grad_fn}
        return [copy.deepcopy(self.plastic, dict(detached)) for _ in self.blocks[1:]]

    def freeze_base(self, copies: list[nn.Module] | None = None) -> None:
        """Make the weights of the plastic branch θ_base and add the other branches."""
        self.branches.extend(self.copies() if copies is None else copies)
        for branch, block in zip(self.branches, self.blocks, strict=True):
            RULES[block](branch)
        self.base_frozen = True

    def thaw_base(self) -> None:
        """Keep the plastic branch only and let all of it learn."""
        del self.branches[1:]
        release(self.plastic, training=self.training)
        self.base_frozen = False

    def outputs(self, inputs: Sequence[Tensor], args: tuple[Any, ...], kwargs: Any) -> list[Any]:
        """Run each branch on its input. In-place changes by one branch do not reach the others."""
        outputs: list[Any] = []
        for branch, x in zip(self.branches, inputs, strict=True):
            if len(outputs) == len(inputs) - 1:
                outputs.append(branch(x, *args, **kwargs))
            elif self._writes_input is False:
                # A view, so that autograd sums gradients in the same order as with a copy.
                outputs.append(branch(x.view_as(x), *args, **kwargs))
            else:
                outputs.append(self._watched(branch, _clone(x), args, kwargs))
        return outputs

    def _watched(self, branch: nn.Module, own: Tensor, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a branch on its own copy of the input; record whether it changed the copy."""
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
    """One residual level, x = Σ_b α_b · branch_b(x) (Eq. 3). It replaces the stage.

    `alpha` is a buffer with one weight per branch, or None in the base phase. Iterating over a
    level yields the level itself, once, so that `for block in stage: x = block(x)` and
    `nn.Sequential(*stage)` still run every branch.
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
        """Make the weights of the plastic branch θ_base; α and φ get their initial values."""
        super().freeze_base(copies)
        tensors = itertools.chain(self.plastic.parameters(), self.plastic.buffers())
        like: Tensor = next(tensor for tensor in tensors if tensor.is_floating_point())
        self.alpha = torch.tensor(self.initial_alpha, dtype=like.dtype, device=like.device)

    def thaw_base(self) -> None:
        super().thaw_base()
        self.alpha = None

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        count = len(self.branches)
        if count == 1:
            return self.plastic(x, *args, **kwargs)
        inputs = split(x, count) if self.after_paired_stem else [x] * count
        assert self.alpha is not None
        return aggregate(self.outputs(inputs, args, kwargs), self.alpha)

    def __getitem__(self, index: int) -> nn.Module:
        """Return a block of the plastic branch, e.g. `net.layer4[-1]` as a Grad-CAM target."""
        if not isinstance(index, int):
            raise TypeError(
                f"{self.name}[{index!r}]: the index must be an integer, since a slice of the "
                f"plastic branch would leave out the stable one. Call the level, or use .branches."
            )
        return self.plastic[index]  # type: ignore[index,no-any-return]

    def __setitem__(self, index: int, block: nn.Module) -> None:
        if self.base_frozen:
            raise TypeError(
                f"{self.name}[{index!r}] = …: θ_base is frozen, and the branches would differ. "
                f"Replace blocks before the conversion or in the base phase."
            )
        self.plastic[index] = block  # type: ignore[operator]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter((self,))

    def __setattr__(self, name: str, value: Any) -> None:
        # A flag that a host sets on its stages (timm's `grad_checkpointing`) goes to the branches.
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
    """A module of the stem, once per branch, called by the host's forward as one module.

    The outputs of the branches are concatenated along the batch dimension. What the host does in
    between (ReLU, pooling) acts on each sample separately. The first level splits them again.
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
    """Return a copy that counts in-place changes. Tensors made in inference mode do not."""
    if not torch.compiler.is_compiling() and x.is_inference():
        with torch.inference_mode(False):
            return x.clone()
    return x.clone()


def split(x: Tensor, count: int) -> list[Tensor]:
    """Split a batch that a paired stem concatenated into one part per branch."""
    size = x.shape[0] // count
    return [x[i * size : (i + 1) * size] for i in range(count)]


def aggregate(outputs: Sequence[Any], alpha: Tensor) -> Any:
    """Return Σ_b α_b · outputs_b (Eq. 3), for every tensor in tuples, lists and dicts."""
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
    """Return the adaptive levels of a model in forward order; empty for a plain model."""
    return [module for module in model.modules() if isinstance(module, AdaptiveLevel)]


def named_levels(model: nn.Module) -> dict[str, AdaptiveLevel]:
    """Return the adaptive levels of a model by name, in forward order.

    The names are those of the stages in the backbone that was converted. If two levels have the
    same name, because several backbones of the model were converted separately, all names are the
    full ones in `model`.
    """
    full = {n: module for n, module in model.named_modules() if isinstance(module, AdaptiveLevel)}
    short = {level.name: level for level in full.values()}
    return short if len(short) == len(full) else full


call_as(levels)
