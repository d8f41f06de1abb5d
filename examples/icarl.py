"""iCaRL with and without AANets.

iCaRL (Rebuffi et al., CVPR 2017) keeps exemplars of old classes, chosen by herding. Its loss is
cross-entropy plus distillation of the old outputs. It predicts the class with the nearest mean of
exemplar features. As in the AANets paper, it has a cosine head with softmax here.

python examples/icarl.py
python examples/icarl.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

The script prints tables of the accuracy with and without AANets, from the same first phase. It
draws the accuracy in accuracy.png and the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import ICaRL
from aanets_plugin.experiments import main

METHOD = ICaRL(
    temperature=2.0,  # of the distillation
    beta=0.25,  # weight of the distillation
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
