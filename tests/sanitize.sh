#!/usr/bin/env bash
# Runs the tests of the native core under AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   tests/sanitize.sh                  the tests that call kernels; some minutes
#   tests/sanitize.sh --short          those of the parsers, the index and the gather, as CI runs them; two minutes
#   tests/sanitize.sh tests/samplers   others; what follows goes to pytest
#
# The instrumented module is built into build/sanitize, beside the one that is installed, which stays as it is.
# A finding fails the run and is printed; it also stays in build/sanitize/report.*. Needs gcc and its sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
case $python in */*) python=$PWD/${python#"$PWD"/} ;; esac
build=$PWD/build/sanitize
default=(
    tests/storages tests/trajectories tests/samplers
    tests/datasets/openx/sources/test_tfrecord.py tests/datasets/openx/sources/test_example.py
    tests/datasets/openx/sources/test_features.py tests/datasets/openx/test_cut.py
)
short=(
    tests/datasets/openx/sources/test_tfrecord.py tests/datasets/openx/sources/test_example.py
    tests/datasets/openx/sources/test_safe_pickle.py tests/datasets/openx/sources/test_tar.py
    tests/datasets/openx/test_kept_frames.py tests/datasets/openx/test_growing.py
    tests/storages/test_channels.py tests/datasets/openx/test_cut.py
    tests/trajectories/test_kernels.py tests/trajectories/test_slice_kernels.py
    tests/weights/test_sum_tree.py tests/storages/test_gather.py tests/storages/test_blocks.py
)
if [ "${1:-}" = --short ]; then
    shift
    default=("${short[@]}")
fi

# Where gcc has no sanitizers CI fails, and nobody else is kept from the other tests.
for library in libasan.so libubsan.so; do
    if [ "$(gcc -print-file-name=$library 2>/dev/null || echo $library)" = $library ]; then
        echo "tests/sanitize.sh: gcc's $library is not there (Debian: libgcc-N-dev), so nothing is checked" >&2
        [ "${CI:-}" = true ] && exit 1
        exit 0
    fi
done

# cmake and ninja may be those of the environment.
PATH="$(dirname "$python"):$PATH"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DREPLAYBANK_SANITIZE=ON \
    -DPython_EXECUTABLE="$python" -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)" >/dev/null
cmake --build "$build"

# The package as it is in src, with the instrumented module in it.
rm -rf "$build/lib" "$build"/report.*
mkdir -p "$build/lib/replaybank"
ln -s "$PWD"/src/replaybank/* "$build/lib/replaybank/"
ln -s "$build"/_native.*so "$build/lib/replaybank/"

# -S keeps the editable installation's import hook out, which would bring in the other module.
paths=$("$python" -c 'import sys; print(":".join(path for path in sys.path if path))')
preload=
for library in libasan.so libubsan.so libstdc++.so; do
    preload+="$(gcc -print-file-name=$library) "
done
status=0
env LD_PRELOAD="$preload" PYTHONMALLOC=malloc PYTHONPATH="$build/lib:$paths" TD_CHECK_INVARIANTS=1 \
    ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:log_path=$build/report" \
    UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1:log_path=$build/report" \
    "$python" -S -c '
import pathlib, sys
import pytest
from replaybank import _native
assert pathlib.Path(_native.__file__).resolve().parent.name == "sanitize", _native.__file__
sys.exit(pytest.main(sys.argv[1:]))
' -q -p no:cacheprovider -p no:benchmark -o addopts="--import-mode=importlib" "${@:-${default[@]}}" || status=$?

for report in "$build"/report.*; do
    [ -e "$report" ] || continue
    status=1
    echo "--- $report"
    cat "$report"
done
exit "$status"
