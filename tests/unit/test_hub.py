"""Offline, the hub's libraries look into their cache at once."""

from __future__ import annotations

import socket

import pytest

from grpo_cli.hub import hub_or_cache


@pytest.mark.parametrize("resolves", [True, False])
def test_offline_only_inside_and_only_without_an_address(
    resolves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    def look_up(*_: object) -> list[object]:
        if not resolves:
            raise socket.gaierror
        return []

    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with hub_or_cache():
        assert constants.HF_HUB_OFFLINE is not resolves
    assert constants.HF_HUB_OFFLINE is False
