"""PODNet with and without AANets.

PODNet (Douillard et al., ECCV 2020) keeps the maps of every stage, pooled over width and height
(POD-spatial), and the last features (POD-flat); each class has several proxies in the head. After a
phase the head is fine-tuned on the exemplars. The learning rate falls along a cosine.

python examples/podnet.py
python examples/podnet.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

Shown: accuracy over the phases, with the plain network and with AANets from the same first phase,
as a table and in accuracy.png; the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import PODNet
from aanets_plugin.experiments.cli import main

METHOD = PODNet(
    spatial_weight=3.0,  # of POD-spatial, times √(classes seen / new classes)
    flat_weight=1.0,  # of POD-flat, likewise
    proxies=10,  # of each class
    finetune_epochs=20,
    finetune_lr=0.05,
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
