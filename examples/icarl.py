"""iCaRL with and without AANets.

iCaRL (Rebuffi et al., CVPR 2017) keeps exemplars of old classes, chosen by herding; it learns new
classes by cross-entropy, keeps the old outputs by distillation, and classifies by the nearest mean
of the exemplars' features. As in the AANets paper it has a softmax and a cosine head.

python examples/icarl.py
python examples/icarl.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

Shown: accuracy over the phases, with the plain network and with AANets from the same first phase,
as a table and in accuracy.png; the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import ICaRL
from aanets_plugin.experiments.cli import main

METHOD = ICaRL(
    temperature=2.0,  # of the softened outputs in the distillation
    beta=0.25,  # weight of the distillation
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
