"""LUCIR with and without AANets.

LUCIR (Hou et al., CVPR 2019) has a cosine head. The weights of new classes are imprinted from their
features, those of old classes stay fixed. Its losses preserve the direction of the old features
(less-forget) and separate exemplars from the most similar new classes (margin ranking).

python examples/lucir.py
python examples/lucir.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

The script prints tables of the accuracy with and without AANets, from the same first phase. It
draws the accuracy in accuracy.png and the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import LUCIR
from aanets_plugin.experiments import main

METHOD = LUCIR(
    base=5.0,  # weight of less-forget, times √(old classes / new classes)
    k=2,  # the number of similar new classes in margin ranking
    margin=0.5,  # of the cosine similarity
    ranking_weight=1.0,  # weight of margin ranking
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
