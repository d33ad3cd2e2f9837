#!/usr/bin/env bash
# Makes .venv, installs deepinfer into it, then does one thing:
#   ./build.sh            install only
#   ./build.sh --demo     answer examples/prompts.jsonl with the model inside the package
#   ./build.sh --test     lint, types and tests
#   ./build.sh --release  for the machine that will run: checks its tools, compiles all kernels
#
# --release looks at DEEPINFER_ACCELERATOR (nvidia, ascend or auto), CUDA_HOME, ASCEND_HOME_PATH and
# DEEPINFER_BATCH_INVARIANT (0 or 1; the same kernels serve both, ascend has no such mode).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

python=${PYTHON:-python3}
mode=${1:-}

refuse() {
  echo "build.sh: $1" >&2
  exit 2
}

case "$mode" in
  "" | --demo | --release) extras="" ;;
  --test) extras="[test]" ;;
  *) refuse "unknown option '$mode'; use --demo, --test or --release, or no option to install only" ;;
esac

# What still works where a release cannot be built.
without_release() {
  refuse "$1; './build.sh' and then '.venv/bin/deepinfer build --accelerator $accelerator $2' still works here"
}

check_release() {
  [ "$(uname -s)" = Linux ] || refuse "--release needs Linux, this is $(uname -s)"
  accelerator=${DEEPINFER_ACCELERATOR:-auto}
  case "$accelerator" in
    nvidia | ascend) ;;
    auto)
      accelerator=nvidia
      if ! command -v nvidia-smi >/dev/null && { command -v npu-smi >/dev/null || [ -n "${ASCEND_HOME_PATH:-}" ]; }; then
        accelerator=ascend
      fi
      ;;
    *) refuse "DEEPINFER_ACCELERATOR='$accelerator': expected nvidia, ascend or auto" ;;
  esac
  case "${DEEPINFER_BATCH_INVARIANT:-0}" in
    0) ;;
    1) [ "$accelerator" = nvidia ] || refuse "DEEPINFER_BATCH_INVARIANT=1: there is no batch-invariant mode on ascend; unset it" ;;
    *) refuse "DEEPINFER_BATCH_INVARIANT='$DEEPINFER_BATCH_INVARIANT': expected 0 or 1" ;;
  esac
  local works="--arch sm90a,sm100a,sm103a"
  [ "$accelerator" = nvidia ] || works="--stage linalg"
  local gcc_version
  gcc_version=$(${CC:-gcc} -dumpversion 2>/dev/null) || without_release "--release needs GCC 13 or newer, there is none" "$works"
  [ "${gcc_version%%.*}" -ge 13 ] || without_release "--release needs GCC 13 or newer, '${CC:-gcc}' is $gcc_version" "$works"
  if [ "$accelerator" = nvidia ]; then check_cuda "$works"; else check_cann "$works"; fi
}

check_cuda() {
  local nvcc found
  nvcc=nvcc
  [ -z "${CUDA_HOME:-}" ] || nvcc=$CUDA_HOME/bin/nvcc
  [ -n "${CUDA_HOME:-}" ] || [ ! -x /usr/local/cuda/bin/nvcc ] || nvcc=/usr/local/cuda/bin/nvcc
  found=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') || true
  [ -n "$found" ] || without_release "--release needs CUDA 13, '$nvcc' is not there; set CUDA_HOME" "$1"
  [ "${found%%.*}" -ge 13 ] || without_release "--release needs CUDA 13, '$nvcc' is of $found; set CUDA_HOME" "$1"
}

check_cann() {
  local home=${ASCEND_HOME_PATH:-/usr/local/Ascend/ascend-toolkit/latest} file found=""
  for file in "$home/version.info" "$home/compiler/version.info" "$home/version.cfg"; do
    [ -n "$found" ] || [ ! -f "$file" ] || found=$(sed -n 's/^[Vv]ersion=\([0-9.]*\).*/\1/p' "$file" | head -n 1)
  done
  [ -n "$found" ] || without_release "--release needs CANN 9.2, there is none in '$home'; set ASCEND_HOME_PATH" "$1"
  [ "$(printf '9.2\n%s\n' "$found" | sort -V | head -n 1)" = 9.2 ] || without_release "--release needs CANN 9.2, '$home' is $found" "$1"
}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  refuse "Python 3.11 or newer is needed, '$python' is $("$python" -V 2>&1 || echo missing); set PYTHON=/path/to/python3.11"
}
[ "$mode" != --release ] || check_release
[ -x .venv/bin/python ] || "$python" -m venv .venv
export PIP_DISABLE_PIP_VERSION_CHECK=1
compile=""
if [ "$mode" = --test ]; then
  # Tests import a quarter of what pip would compile; Python keeps what it compiles for itself.
  compile=--no-compile
  export PYTHONDONTWRITEBYTECODE=
fi
# The code is linked, so only another list of packages is a reason to install again.
installed=.venv/installed$extras
if ! [ "$installed" -nt pyproject.toml ]; then
  # The pip that comes with Python 3.11 takes twice as long to choose versions.
  [ "$mode" != --test ] || .venv/bin/python -m pip install --quiet --upgrade pip
  .venv/bin/python -m pip install --quiet $compile --editable ".$extras"
  true >.venv/installed # those of tests are all that a run needs, and more
  true >"$installed"
fi

case "$mode" in
  --demo)
    .venv/bin/deepinfer run examples/prompts.jsonl --output demo.jsonl --force
    echo "--- demo.jsonl" >&2
    cat demo.jsonl
    ;;
  --test)
    .venv/bin/ruff format --check .
    .venv/bin/ruff check .
    .venv/bin/mypy & # one process, beside two that wait now and then
    types=$!
    .venv/bin/pytest -q -n 2 --dist worksteal tests
    wait "$types"
    ;;
  --release)
    .venv/bin/deepinfer build --accelerator "$accelerator"
    ;;
esac
