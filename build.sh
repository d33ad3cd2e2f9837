#!/usr/bin/env bash
# Makes .venv, installs deepinfer into it, then does one thing:
#   ./build.sh           install only
#   ./build.sh --demo    answer examples/prompts.jsonl with the model inside the package
#   ./build.sh --test    lint, types and tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

python=${PYTHON:-python3}
case "${1:-}" in
  "" | --demo) extras="" ;;
  --test) extras="[test]" ;;
  *) echo "build.sh: unknown option '$1'; use --demo or --test, or no option to install only" >&2; exit 2 ;;
esac

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "build.sh: Python 3.11 or newer is needed, '$python' is $("$python" -V 2>&1); set PYTHON=/path/to/python3.11" >&2
  exit 2
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --editable ".$extras"

case "${1:-}" in
  --demo)
    .venv/bin/deepinfer run examples/prompts.jsonl --output demo.jsonl --force
    echo "--- demo.jsonl" >&2
    cat demo.jsonl
    ;;
  --test)
    .venv/bin/ruff format --check .
    .venv/bin/ruff check .
    .venv/bin/mypy
    .venv/bin/pytest -q -n 2 tests
    ;;
esac
