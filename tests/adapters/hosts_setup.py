"""Small learners with the joints of the hosts, written for these tests. Two classes per task."""

from __future__ import annotations

import numpy as np

TASKS, NEW, PER_CLASS, EPOCHS = 3, 2, 8, 2


def images(task):
    """Arrays of the task's two classes, an image per row."""
    generator = np.random.default_rng(task)
    labels = np.repeat(np.arange(task * NEW, (task + 1) * NEW), PER_CLASS)
    x = generator.normal(size=(len(labels), 3, 8, 8)) + labels[:, None, None, None] / 2
    return x.astype(np.float32), labels


class Watched:
    """Counts, on a learner with AANets, the classes in each update of α."""

    def __init__(self, learner):
        self.learner, self.counts = learner, []
        bilevel = learner.bilevel
        loss_fn, after_epoch = bilevel.loss_fn, bilevel.after_epoch

        def counting(model, batch):
            for label in batch[-1].tolist():
                self.counts[-1][label] = self.counts[-1].get(label, 0) + 1
            return loss_fn(model, batch)

        def counted(loader=None):
            if not bilevel.in_base_phase:
                self.counts.append({})
            return after_epoch(loader)

        bilevel.loss_fn, bilevel.after_epoch = counting, counted

    def assert_balanced(self, updates):
        """`updates` after each task; all classes so far in each, and equally many of them."""
        tasks = [task for task, count in enumerate(updates, 1) for _ in range(count)]
        assert len(self.counts) == len(tasks)
        for task, counts in zip(tasks, self.counts, strict=True):
            assert set(counts) == set(range((task + 1) * NEW))
            assert len(set(counts.values())) == 1
