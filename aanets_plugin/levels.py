"""AdaptiveLevel: the branches of one residual level and their aggregation weights α.

Names in a converted model's state_dict, for a stage called `layer1`:

    layer1.branches.0.*        the plastic branch, under the names the stage had
    layer1.branches.1.*        the next branch; the last one is the stable branch
    layer1.branches.1.*.delta  δ = φ − 1 of a frozen kernel, beside its `weight`
    layer1.alpha               α, one weight per branch

In the base phase there is neither `branches.1` nor `alpha`. A shared stem keeps its names, with
`conv1.delta` beside `conv1.weight` if it is scaled. A paired stem has `conv1.branches.0.*` and
`conv1.branches.1.*`. A state_dict with `phi` in place of `delta` is loaded too.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.callable_module import call_as
from aanets_plugin.checks import check_module
from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.nested import TENSORS, aggregate, map_tensors, same_form
from aanets_plugin.scaling import RULES, release

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Where a torch.nn.Module has the hooks of its forward and backward."""


def move_hooks(source: nn.Module, target: nn.Module) -> None:
    """Give the hooks of a module to the one that takes its place, which has none."""
    for name in (*HOOKS, "_is_full_backward_hook"):
        # The dictionary itself, not its content, because the handles of the hooks refer to it.
        vars(source)[name], vars(target)[name] = vars(target)[name], vars(source)[name]


class Branches(nn.Module):
    """A module and its copies, one per entry of `blocks`, which says how each learns.

    In the base phase there is only the module itself, and all of it learns.
    """

    def __init__(self, name: str, module: nn.Module, blocks: Sequence[str]) -> None:
        super().__init__()
        self.name = name
        self.blocks = tuple(blocks)
        self.branches = nn.ModuleList([module])
        self.base_frozen = False
        self.training = module.training
        # Whether a branch changes its input in place, by mode, as soon as it is known.
        self._writes_input: dict[bool, bool] = {}

    @property
    def plastic(self) -> nn.Module:
        """The first branch. In the base phase it is the only one."""
        return self.branches[0]

    @property
    def stable(self) -> nn.Module:
        """The last branch. In the base phase it is the only one."""
        return self.branches[-1]

    def _memo(self) -> dict[int, Any]:
        """Return what deepcopy must not copy."""
        memo: dict[int, Any] = {}
        for module in self.plastic.modules():
            hooks = [vars(module)[name] for name in HOOKS]
            if module is self.plastic:  # its hooks belong to the level
                memo.update((id(hook), type(hook)()) for hook in hooks)
            elif any(hooks):  # they act on each branch, and go from all when they are removed
                memo.update((id(hook), hook) for hook in hooks)
            for value in vars(module).values():
                if isinstance(value, Tensor) and value.grad_fn:  # an activation that a host cached
                    memo[id(value)] = value.detach()
        return memo

    def freeze_base(self) -> None:
        """Make the weights of the plastic branch θ_base and add the other branches."""
        self.branches.extend(copy.deepcopy(self.plastic, self._memo()) for _ in self.blocks[1:])
        for branch, block in zip(self.branches, self.blocks, strict=True):
            RULES[block](branch)
        self.base_frozen = True

    def thaw_base(self) -> None:
        """Keep the plastic branch only and let all of it learn."""
        del self.branches[1:]
        release(self.plastic, training=self.training)
        self.base_frozen = False

    def outputs(self, calls: Sequence[Arguments]) -> list[Any]:
        """Call each branch with its arguments. In-place changes by one do not reach the others."""
        *first, (branch, (args, kwargs)) = zip(self.branches, calls, strict=True)
        return [*(self._protected(b, *a) for b, a in first), branch(*args, **kwargs)]

    def _protected(self, branch: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a branch with copies of the tensors, or with views if it does not write to them.

        The first call in train mode, and that in eval mode, finds out. Later calls check that it is
        still so. Compiled code always copies.
        """
        compiling = torch.compiler.is_compiling()
        # Compiled code copies: it would be compiled again after each call that finds something out.
        writes = None if compiling else self._writes_input.get(self.training)
        own: list[Any] = []

        def protect(x: Any) -> Any:
            # A view, so that autograd sums gradients in the same order as with a copy.
            view = writes is False and isinstance(x, Tensor)
            own.append(x.view_as(x) if view else _clone(x))
            return own[-1]

        own_args, own_kwargs = map_tensors(protect, args), map_tensors(protect, kwargs)
        if compiling:
            return branch(*own_args, **own_kwargs)
        watched = [x for x in own if isinstance(x, Tensor) and not x.is_inference()]
        versions = [x._version for x in watched]
        output = branch(*own_args, **own_kwargs)
        written = versions != [x._version for x in watched]
        if writes is None and len(watched) == len(own):
            self._writes_input[self.training] = written
            if not (same_form(args, own_args) and same_form(kwargs, own_kwargs)):
                raise UnsupportedModelError(
                    f"{self.name}: the stage adds to a list or dict that it gets, which would then "
                    f"hold values of one branch. Let it return them, or leave it out of `stages`."
                )
        if writes is False and written:
            self._writes_input[self.training] = True
            raise UnsupportedModelError(
                f"{self.name}: the stage changed its input in place, which it did not do in the "
                f"first forward, so the other branches would get another input. Run the batch "
                f"again: from now on each branch gets a copy."
            )
        return output

    def _same(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Arguments]:
        return [(args, kwargs)] * len(self.branches)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Arguments]:
        """Split a batch that a paired stem concatenated into one part per branch."""
        if len(args) != 1 or kwargs or not isinstance(args[0], TENSORS):
            raise UnsupportedModelError(
                f"{self.name}: behind a paired stem a stage must take one tensor and nothing else. "
                f"Convert with stem='stable' or stem='plastic'."
            )
        x: Any = args[0]
        count = len(self.branches)
        size = x.shape[0] // count
        return [((x[i * size : (i + 1) * size],), {}) for i in range(count)]

    def extra_repr(self) -> str:
        """Show the kinds of the branches in `repr`."""
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
        super().__init__(name, stage, blocks)
        self.initial_alpha = tuple(initial_alpha)
        self.after_paired_stem = after_paired_stem
        # Whether θ_base is what the conversion found, not the result of a phase or of loading.
        self.from_conversion = False
        self.register_buffer("alpha", None)

    def freeze_base(self) -> None:
        """Make the weights of the plastic branch θ_base; α and φ get their initial values."""
        super().freeze_base()
        tensors = itertools.chain(self.plastic.parameters(), self.plastic.buffers())
        like: Tensor = next(tensor for tensor in tensors if tensor.is_floating_point())
        self.alpha = torch.tensor(self.initial_alpha, dtype=like.dtype, device=like.device)

    def thaw_base(self) -> None:
        """Return to the base phase: one branch, all of it learns, no α."""
        super().thaw_base()
        self.alpha = None
        self.from_conversion = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the branches, aggregated with α."""
        if len(self.branches) == 1:
            return self.plastic(*args, **kwargs)
        calls = self._split(args, kwargs) if self.after_paired_stem else self._same(args, kwargs)
        assert self.alpha is not None
        return aggregate(self.outputs(calls), self.alpha)

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

    def __len__(self) -> int:
        raise TypeError(
            f"len({self.name}): a level has no length, because its blocks are not called one by "
            f"one. Call the level, iterate over it, or use len({self.name}.plastic)."
        )

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            branches = self.__dict__.get("_modules", {}).get("branches")
            if not branches or name.startswith("_") or not hasattr(branches[0], name):
                raise
        value = getattr(branches[0], name)
        if callable(value) or isinstance(value, Tensor):
            raise AttributeError(
                f"{self.name}.{name} is in each branch, and using one of them would leave out the "
                f"others. Call the level, or use {self.name}.plastic.{name}."
            )
        return value  # a number or a flag that the host reads from its stage

    def __setattr__(self, name: str, value: Any) -> None:
        # A flag that a host sets on its stages (timm's `grad_checkpointing`) goes to the branches.
        branches = self.__dict__.get("_modules", {}).get("branches")
        if branches and name not in self.__dict__ and name in branches[0].__dict__:
            for branch in branches:
                setattr(branch, name, value)
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Show the name, the kinds of the branches and α in `repr`."""
        alpha = "base phase" if self.alpha is None else [round(a, 4) for a in self.alpha.tolist()]
        return f"{self.name}, {super().extra_repr()}, alpha={alpha}"


class PairedStem(Branches):
    """A module of the stem, once per branch, called by the host's forward as one module.

    The outputs of the branches are concatenated along the batch dimension. What the host does in
    between (ReLU, pooling) acts on each sample separately. The first level splits them again.
    """

    def __init__(self, name: str, module: nn.Module, blocks: Sequence[str], *, first: bool) -> None:
        super().__init__(name, module, blocks)
        self.first = first

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the branches, concatenated along the batch dimension."""
        if len(self.branches) == 1:
            return self.plastic(*args, **kwargs)
        calls = (self._same if self.first else self._split)(args, kwargs)
        return torch.cat(self.outputs(calls))


def _clone(x: Any) -> Any:
    """Return a copy that counts in-place changes. Tensors made in inference mode do not."""
    if isinstance(x, Tensor) and not torch.compiler.is_compiling() and x.is_inference():
        with torch.inference_mode(False):
            return x.clone()
    return x.clone()


def levels(model: nn.Module) -> list[AdaptiveLevel]:
    """Return the adaptive levels of a model in forward order; empty for a plain model."""
    check_module(model)
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
