"""Mnemonics with and without AANets.

Mnemonics (Liu et al., CVPR 2020) uses LUCIR's losses and also learns the exemplars: their pixels
are optimised so that a network fine-tuned on them performs well on all data of their classes. At
the end of a phase the head is fine-tuned on the exemplars.

python examples/mnemonics.py
python examples/mnemonics.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

The script prints tables of the accuracy with and without AANets, from the same first phase. It
draws the accuracy in accuracy.png and the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import Mnemonics
from aanets_plugin.experiments import main

METHOD = Mnemonics(
    base=5.0,  # this and the next three: as in LUCIR
    k=2,
    margin=0.5,
    ranking_weight=1.0,
    refine_steps=20,  # steps on the pixels of the exemplars, after each phase
    refine_lr=2e-3,  # change of a pixel in one step, in units of the normalised image
    inner_lr=1.0,  # learning rate of the inner steps, which are differentiated through
    inner_steps=5,
    finetune_epochs=10,
    finetune_lr=0.05,
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
