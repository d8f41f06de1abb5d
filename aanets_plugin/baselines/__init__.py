"""The methods that the paper compares: losses, heads and classes for any training loop."""

from aanets_plugin.baselines.feature_maps import stage_maps
from aanets_plugin.baselines.heads import (
    CosineLinear,
    SplitCosineLinear,
    grow_cosine,
    grow_linear,
    imprinted_weights,
)
from aanets_plugin.baselines.icarl import ICaRL, icarl_loss, knowledge_distillation
from aanets_plugin.baselines.joint import Joint
from aanets_plugin.baselines.lucir import (
    LUCIR,
    less_forget_loss,
    less_forget_weight,
    lucir_loss,
    margin_ranking_loss,
)
from aanets_plugin.baselines.method import Method
from aanets_plugin.baselines.metrics import PhaseMetrics, phase_metrics
from aanets_plugin.baselines.mnemonics import (
    Mnemonics,
    exemplar_gradient,
    finetune_on_exemplars,
    refine_exemplars,
)
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.baselines.podnet import (
    PODNet,
    nca_loss,
    pod_flat,
    pod_scale,
    pod_spatial,
    podnet_loss,
    proxy_nca_loss,
)
from aanets_plugin.baselines.prediction import class_means, nearest_mean
from aanets_plugin.baselines.proxies import LocalSimilarityClassifier, kmeans_proxies
from aanets_plugin.baselines.resnet import CifarResNet, resnet20, resnet32

METHODS: dict[str, type[Method]] = {m.name: m for m in (ICaRL, LUCIR, PODNet, Mnemonics)}
"""The methods by name; `Joint`, the upper bound, is not one of them."""

__all__ = [
    "ICaRL",
    "IncrementalNet",
    "Joint",
    "LUCIR",
    "METHODS",
    "Method",
    "Mnemonics",
    "PODNet",
    "PhaseMetrics",
    "CifarResNet",
    "CosineLinear",
    "LocalSimilarityClassifier",
    "SplitCosineLinear",
    "class_means",
    "exemplar_gradient",
    "finetune_on_exemplars",
    "grow_cosine",
    "grow_linear",
    "icarl_loss",
    "imprinted_weights",
    "kmeans_proxies",
    "knowledge_distillation",
    "less_forget_loss",
    "less_forget_weight",
    "lucir_loss",
    "margin_ranking_loss",
    "nca_loss",
    "nearest_mean",
    "phase_metrics",
    "pod_flat",
    "pod_scale",
    "pod_spatial",
    "podnet_loss",
    "proxy_nca_loss",
    "refine_exemplars",
    "resnet20",
    "resnet32",
    "stage_maps",
]
