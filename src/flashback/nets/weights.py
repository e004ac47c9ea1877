"""Weights of pretrained networks: read from a file, or found in the cache of timm without asking the network."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from flashback.errors import FlashbackError, import_extra, require

HUB_FILES = ("model.safetensors", "pytorch_model.bin")
NESTED = ("state_dict", "model")  # keys under which training scripts save weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, or of a file that `torch.save` wrote; no code in it is run.

    Raises:
        FlashbackError: If the file is missing, or holds something else than named tensors.
    """
    require(path.is_file(), f"there is no file of weights {path}; check the path")
    try:
        if path.suffix == ".safetensors":
            saved: Any = safetensors.torch.load_file(path)
        else:
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError, safetensors.SafetensorError):
        raise FlashbackError(
            f"{path} cannot be read as weights; give a .safetensors file, or a state_dict saved with torch.save"
        ) from None
    if isinstance(saved, dict):
        saved = next((saved[key] for key in NESTED if isinstance(saved.get(key), dict)), saved)
    holds_tensors = isinstance(saved, dict) and all(isinstance(tensor, Tensor) for tensor in saved.values())
    require(holds_tensors and bool(saved), f"{path} holds no named tensors; give the state_dict of a model")
    return {str(name).removeprefix("module."): tensor for name, tensor in saved.items()}


def cached_weights(source: Any) -> Path | None:
    """The file with the weights of a timm model (its `PretrainedCfg`) on this machine, or None."""
    if source is None:
        return None
    if source.hf_hub_id:
        hub = import_extra("huggingface_hub", "timm", "the cache of timm needs the package huggingface_hub")
        repository, _, revision = source.hf_hub_id.partition("@")
        for name in [source.hf_hub_filename] if source.hf_hub_filename else HUB_FILES:
            cached = hub.try_to_load_from_cache(repository, name, revision=revision or None)
            if isinstance(cached, str):  # else None, or a mark for a file that the repository lacks
                return Path(cached)
    if source.url:
        cached_file = Path(torch.hub.get_dir(), "checkpoints", source.url.rpartition("/")[2])
        return cached_file if cached_file.is_file() else None
    return None
