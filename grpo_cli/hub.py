"""The Hugging Face hub when it may not be there. Must not import torch."""

from __future__ import annotations

import os
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

# The libraries' progress bars and advice are for people who call them.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Inside, look only into the local cache when the hub's name cannot be resolved.

    The library would otherwise retry every file of a repository for 25 s. Import what is to be used
    before: a library that is imported inside keeps the setting.
    """
    from huggingface_hub import constants

    datasets = sys.modules.get("datasets")
    if constants.HF_HUB_OFFLINE or _has_an_address(constants.ENDPOINT):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    if datasets is not None:
        datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False
        if datasets is not None:
            datasets.config.HF_HUB_OFFLINE = False


def _has_an_address(endpoint: str) -> bool:
    """Whether the hub's name resolves. Behind a proxy that is the proxy's work."""
    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urllib.parse.urlsplit(endpoint).hostname, 443)
    except OSError:
        return False
    return True
