"""Strategies that AANets cannot change, told before anything is touched."""

from __future__ import annotations

from typing import Any

from avalanche.benchmarks import OnlineCLExperience

from aanets_plugin.errors import AANetError


class UnsupportedStrategyError(AANetError):
    """The strategy has no part in which AANets would make sense."""


# By name: some of these modules need packages that are not installed with Avalanche.
_REASONS = {
    "StreamingLDA": "its backbone is never trained, so that a plastic branch would not learn",
    "FeatureReplay": "it replays stored features, which the branches would change under it",
    "LearningToPrompt": "it trains prompts of a frozen transformer, which has no residual stages",
    "ObjectDetectionTemplate": "a detector has no class logits that α could learn from",
}


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy that AANets cannot change; touches nothing."""
    reasons = [_REASONS[b.__name__] for b in type(strategy).__mro__ if b.__name__ in _REASONS]
    for plugin in strategy.plugins:
        if getattr(plugin, "freeze_remaining_model", False):  # CWR*
            reasons.append(
                f"its {type(plugin).__name__} freezes the backbone after the first experience, so "
                f"that a plastic branch would not learn"
            )
    if reasons:
        raise UnsupportedStrategyError(
            f"{type(strategy).__name__} cannot use AANetPlugin: {reasons[0]}. Use a strategy that "
            f"trains its whole network, such as Naive, Replay or ICaRL."
        )


def check_experience(experience: Any) -> None:
    """Refuse a stream that does not tell where an experience begins."""
    if getattr(experience, "access_task_boundaries", True):
        return
    raise UnsupportedStrategyError(
        f"experience {experience.current_experience} is part of an online stream without task "
        f"boundaries, so that AANetPlugin cannot tell one phase from the next. Make the stream "
        f"with access_task_boundaries=True."
    )


def check_new_classes(experience: Any, known: list[int]) -> None:
    """Refuse an experience that does not bring new classes, all at once."""
    if isinstance(experience, OnlineCLExperience):
        raise UnsupportedStrategyError(
            f"experience {experience.current_experience} is part of an online stream; this "
            f"strategy herds and imprints from whole experiences. Train on the benchmark itself."
        )
    again = sorted(set(known) & set(experience.classes_in_this_experience))
    if again:
        raise UnsupportedStrategyError(
            f"experience {experience.current_experience} has the classes {again[:10]}, which were "
            f"learned before; expected new classes in every experience. Class ids must not start "
            f"from zero again."
        )
