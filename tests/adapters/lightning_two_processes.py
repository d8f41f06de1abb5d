"""Run by test_lightning.py in two processes: two fits under DDP on gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning as L

from aanets_plugin import levels
from aanets_plugin.adapters.lightning import AANetCallback
from tests.adapters.test_lightning import Module, balanced, loader


class Watched(Module):
    """Adds up what it is trained on."""

    total = 0.0

    def training_step(self, batch, index):
        self.total += float(batch[0].sum())
        return super().training_step(batch, index)


def main(folder: Path) -> None:
    module, callback = Watched(), AANetCallback(balanced=())
    for task in range(2):
        callback.balanced = balanced(task)
        trainer = L.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            callbacks=[callback],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader(task))
        rank = trainer.global_rank
    result = {
        "data": module.total,
        "history": [record.weights for record in callback.bilevel.history],
        "alpha": [level.alpha.tolist() for level in levels(module)],
        "weights": [float(parameter.detach().sum()) for parameter in module.parameters()],
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
