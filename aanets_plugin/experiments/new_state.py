"""The state that a run begins with."""

import copy

from aanets_plugin.adapters.continuum.memory import rehearsal_memory
from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.baselines.lifecycle import Backbone, build_network
from aanets_plugin.baselines.method import Method
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.channels_last import allows_channels_last
from aanets_plugin.experiments.run_config import exemplars_left
from aanets_plugin.experiments.run_state import RunState
from aanets_plugin.experiments.settings import Memory, Training
from aanets_plugin.levels import levels


def new_state(
    backbone: Backbone,
    method: Method,
    aanets: AANetConfig | None,
    memory: Memory,
    training: Training,
    phases: Phases,
) -> tuple[RunState, Memory]:
    """Build the network and the memory, and check that the network converts.

    Also returns `memory` with the number of exemplars that the network leaves room for.
    """
    net = build_network(backbone, method, phases.increments[0], phases.input_shape)
    if aanets is None and levels(net.backbone):
        raise ConfigurationError(
            "The backbone is converted, so a run without AANets would train an AANet. Pass a "
            "plain backbone; the run converts it if it gets `aanets`."
        )
    converted = None
    if aanets is not None:  # a copy, to check the conversion before anything is trained
        converted = convert_to_aanet(copy.deepcopy(net.backbone), **aanets.conversion)
    if not method.keeps_all_data:
        memory = exemplars_left(memory, aanets, converted, phases)
    exemplars = rehearsal_memory(phases.classes, per_class=memory.per_class, total=memory.total)
    channels_last = training.channels_last and all(
        allows_channels_last(each, phases.input_shape)
        for each in (net.backbone, converted)
        if each is not None
    )
    return RunState(net, method, aanets, exemplars, channels_last=channels_last), memory
