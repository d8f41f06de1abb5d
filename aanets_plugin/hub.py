"""Saved models on the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from typing import Any

from torch import nn

from aanets_plugin.extras import needs
from aanets_plugin.saving import DESCRIPTION, WEIGHTS, load_aanet, save_aanet


def push_to_hub(
    model: nn.Module,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    **options: Any,
) -> str:
    """Save a converted model to the repository `repo_id` of the Hub; returns the commit's address.

    The repository is made if it does not exist. `endpoint` is the address of a hub of your own.
    `options` are those of `save_aanet`.
    """
    hub = needs("huggingface_hub", "hub").HfApi(endpoint=endpoint, token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_aanet(model, folder, **options)
        hub.create_repo(repo_id, private=private, exist_ok=True)
        return str(hub.upload_folder(repo_id=repo_id, folder_path=folder))


def from_hub(repo_id: str, plain_model: nn.Module | None = None, **options: Any) -> nn.Module:
    """Load a converted model from the repository `repo_id` of the Hub, as `load_aanet` does.

    `options` are those of huggingface_hub's `snapshot_download`: `revision`, `token`, `endpoint`,
    `local_files_only` and so on.
    """
    download = needs("huggingface_hub", "hub").snapshot_download
    folder = download(repo_id, allow_patterns=[WEIGHTS, DESCRIPTION], **options)
    return load_aanet(folder, plain_model)
