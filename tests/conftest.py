"""Shared by all tests: offline, one thread, and where the benchmark items are."""

import os
from pathlib import Path

# Before any library reads them; no test may reach for a network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import pytest
import torch

# More threads than idle cores make small models slower by a factor of ten.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real benchmark items in hub layout, from the environment variable DRIFTLAB_DATA."""
    folder = os.environ.get("DRIFTLAB_DATA")
    if not folder:
        pytest.skip("DRIFTLAB_DATA is unset: no folder of benchmark items")
    return Path(folder)
