"""What surrounds the code: issue forms, checks before a commit, what CI and a release run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml


def test_issue_forms_ask_for_what_is_needed(root: Path) -> None:
    forms = [p for p in (root / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
    assert len(forms) >= 3
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 0
        assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_checks_before_a_commit_need_no_network(root: Path) -> None:
    text = (root / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    hooks = [hook for repo in yaml.safe_load(text)["repos"] for hook in repo["hooks"]]
    assert all(repo["repo"] == "local" for repo in yaml.safe_load(text)["repos"])
    assert {hook["language"] for hook in hooks} <= {"system", "pygrep"}
    assert {"ruff-format", "ruff-check"} <= {hook["id"] for hook in hooks}


def test_the_rule_about_large_files(root: Path, tmp_path: Path) -> None:
    text = (root / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    hooks = {h["id"]: h for repo in yaml.safe_load(text)["repos"] for h in repo["hooks"]}
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(bytes(5 << 20))
    for name, code in (("small", 0), ("large", 1)):
        line = f"{hooks['large-files']['entry']} {name}"
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True)
        assert done.returncode == code, name


def test_no_tracked_file_has_conflict_markers(root: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.decode().split("\0"):
        path = root / name
        if path.is_file() and path.suffix in (".py", ".md", ".toml", ".yml", ".sh", ".json"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"^(<{7} |>{7} )", text, re.MULTILINE), name


def test_ci_is_the_two_commands_of_the_readme(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    steps = [
        line
        for line in (root / ".ci" / "run").read_text().splitlines()
        if line.startswith("./build.sh")
    ]
    assert len(steps) >= 2 and all(f"{step} " in readme for step in steps)


@pytest.mark.parametrize("name", ["run", "release-check"])
def test_scripts_of_ci_are_sound(root: Path, name: str) -> None:
    path = root / ".ci" / name
    assert path.stat().st_mode & 0o100
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
