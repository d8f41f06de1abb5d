"""LUCIR with and without AANets.

LUCIR (Hou et al., CVPR 2019) has a cosine head, whose new weights are imprinted from features and
whose old ones stay fixed; it keeps the direction of the old features (less-forget), and holds
exemplars of old classes away from the new classes that are most like them (margin ranking).

python examples/lucir.py
python examples/lucir.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

Shown: accuracy over the phases, with the plain network and with AANets from the same first phase,
as a table and in accuracy.png; the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import LUCIR
from aanets_plugin.experiments.cli import main

METHOD = LUCIR(
    base=5.0,  # weight of less-forget, times √(old classes / new classes)
    k=2,  # new classes that an exemplar is held away from
    margin=0.5,  # by so much in cosine
    ranking_weight=1.0,
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
