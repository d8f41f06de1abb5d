"""Checks for strategies and streams that AANets do not support."""

from typing import Any

from avalanche.benchmarks import OnlineCLExperience

from aanets_plugin.errors import AANetError


class UnsupportedStrategyError(AANetError):
    """The strategy or stream cannot be used with AANets."""


# By name, because importing some of them needs optional packages.
_REASONS = {
    "StreamingLDA": "its backbone is never trained, so the plastic branches would not learn",
    "FeatureReplay": "it replays stored features, which become invalid when the branches learn",
    "LearningToPrompt": "it trains prompts of a frozen transformer, which has no residual stages",
    "ObjectDetectionTemplate": "it trains a detector, which has no class logits for the loss of α",
}


def check_strategy(strategy: Any) -> None:
    """Raise an error if AANets do not support the strategy."""
    reasons = [_REASONS[b.__name__] for b in type(strategy).__mro__ if b.__name__ in _REASONS]
    for plugin in strategy.plugins:
        if getattr(plugin, "freeze_remaining_model", False):  # CWR*
            reasons.append(
                f"its {type(plugin).__name__} freezes the backbone after the first experience, so "
                f"the plastic branches would not learn"
            )
    if reasons:
        raise UnsupportedStrategyError(
            f"{type(strategy).__name__} cannot use AANetPlugin: {reasons[0]}. Use a strategy that "
            f"trains its whole network, such as Naive, Replay or ICaRL."
        )


def check_experience(experience: Any) -> None:
    """Raise an error if the stream does not tell where an experience begins."""
    if getattr(experience, "access_task_boundaries", True):
        return
    raise UnsupportedStrategyError(
        f"experience {experience.current_experience} is part of an online stream without task "
        f"boundaries, so AANetPlugin does not know where a phase begins. Create the stream with "
        f"access_task_boundaries=True."
    )


def check_new_classes(experience: Any, known: list[int]) -> None:
    """Raise an error if the experience has old classes, or is a part of an online stream."""
    if isinstance(experience, OnlineCLExperience):
        raise UnsupportedStrategyError(
            f"experience {experience.current_experience} is part of an online stream, but this "
            f"strategy needs whole experiences. Train on the original benchmark."
        )
    again = sorted(set(known) & set(experience.classes_in_this_experience))
    if again:
        raise UnsupportedStrategyError(
            f"experience {experience.current_experience} has the classes {again[:10]}, which were "
            f"learned before: must have new classes only. Number the classes across experiences."
        )
