# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from trio_worker.quickstart.recitation import cache


def _write(text: str) -> cache.Builder:
    def build(empty: Path) -> None:
        assert not list(empty.iterdir())
        (empty / "weights").write_text(text)

    return build


def _must_not_build(empty: Path) -> None:
    raise AssertionError("built again")


def test_built_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "model"
    assert not cache.is_intact(folder)
    assert cache.build_once(folder, _write("w")) == folder
    assert cache.is_intact(folder)
    cache.build_once(folder, _must_not_build)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("damage", ["change", "remove", "no manifest", "empty", "not a folder"])
def test_damaged_model_is_built_again(tmp_path: Path, damage: str) -> None:
    folder = cache.build_once(tmp_path / "model", _write("w"))
    match damage:
        case "change":
            (folder / "weights").write_text("x")
        case "remove":
            (folder / "weights").unlink()
        case "no manifest":
            (folder / cache.MANIFEST).unlink()
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()
        case _:
            shutil.rmtree(folder)
            folder.write_text("")
    assert not cache.is_intact(folder)
    cache.build_once(folder, _write("w"))
    assert cache.is_intact(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_failing_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(empty: Path) -> None:
        (empty / "weights").write_text("half")
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        cache.build_once(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []


def test_two_builds_at_once_agree(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    both_build = threading.Barrier(2, timeout=30)
    results: list[Path] = []

    def build(empty: Path) -> None:
        both_build.wait()
        (empty / "weights").write_text("w")

    def run() -> None:
        results.append(cache.build_once(folder, build))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [folder, folder]
    assert cache.is_intact(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_recipe_names_every_source_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path(cache.__file__).parent
    for name in cache.RECIPE:
        shutil.copy(here / name, tmp_path)
    original = cache.recipe_hash()
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    assert cache.recipe_hash() == original
    for name in cache.RECIPE:
        source = tmp_path / name
        text = source.read_text()
        source.write_text(text + "\nMORE = 1\n")
        assert cache.recipe_hash() != original
        source.write_text(text)


def test_cache_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "trio-worker"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "trio-worker"
