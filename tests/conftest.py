import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: a second thread costs more than it brings


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)
