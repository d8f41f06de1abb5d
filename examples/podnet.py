"""PODNet with and without AANets.

PODNet (Douillard et al., ECCV 2020) distils the feature maps of every stage, pooled over width and
height (POD-spatial), and the final features (POD-flat). Each class has several proxies in the head.
After each phase the head is fine-tuned on the exemplars. The learning rate follows a cosine.

python examples/podnet.py
python examples/podnet.py --dataset cifar100 --data FOLDER --preset paper --seeds 0 1 2

The script prints tables of the accuracy with and without AANets, from the same first phase. It
draws the accuracy in accuracy.png and the aggregation weights α of each level in alpha.png.
"""

from __future__ import annotations

from aanets_plugin.baselines import PODNet
from aanets_plugin.experiments import main

METHOD = PODNet(
    spatial_weight=3.0,  # weight of POD-spatial, times √(classes seen / new classes)
    flat_weight=1.0,  # weight of POD-flat, times the same factor
    proxies=10,  # of each class
    finetune_epochs=20,
    finetune_lr=0.05,
)

if __name__ == "__main__":
    main(METHOD, description=__doc__)
