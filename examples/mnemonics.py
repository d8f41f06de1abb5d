"""Mnemonics with and without AANets.

Mnemonics (Liu et al., CVPR 2020) learns with LUCIR's losses, and learns the exemplars too: their
pixels are changed such that a network fine-tuned on them does well on the data they stand for. At
the end of a phase the head is fine-tuned on them.

python examples/mnemonics.py
python examples/mnemonics.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

Shown: accuracy over the phases, with the plain network and with AANets from the same first phase,
as a table and in accuracy.png; the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import Mnemonics
from aanets_plugin.experiments.cli import main

METHOD = Mnemonics(
    base=5.0,  # LUCIR's four
    k=2,
    margin=0.5,
    ranking_weight=1.0,
    refine_steps=20,  # of the exemplars' pixels, after each phase
    refine_lr=2e-3,  # how far a step moves a pixel, in units of the normalised image
    inner_lr=1.0,  # of the trial steps on the exemplars that are differentiated through
    inner_steps=5,
    finetune_epochs=10,
    finetune_lr=0.05,
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
