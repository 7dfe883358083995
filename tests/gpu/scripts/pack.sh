#!/bin/bash
# Packs what checks on a machine with a GPU need into .gpu/ (ignored by git): trainctl and the given test binaries, stripped,
# with the libraries that they load, templates, jobs, benchmarks and these scripts.
#
#   here, with a build:   bash tests/gpu/scripts/pack.sh [test_op_cases_cuda test_gpu … /usr/bin/tjbench] [-- PEER.py …]
#   there, with .gpu/:    bash .gpu/networks.sh speed        each script's head says what it does, and how long that takes
set -euo pipefail
cd "$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)"
to=.gpu bin=${BIN:-build/release/bin}
exclude=$(git rev-parse --git-common-dir)/info/exclude
mkdir -p "$(dirname "$exclude")"; grep -qsx "/$to/" "$exclude" || echo "/$to/" >> "$exclude"
rm -rf $to; mkdir -p $to/{bin,lib,tests,peers}
binaries=(trainctl)
while [ $# -gt 0 ] && [ "$1" != -- ]; do binaries+=("$1"); shift; done
[ $# -gt 0 ] && shift
for peer in "$@"; do cp "$peer" $to/peers/; done
for b in "${binaries[@]}"; do
  from=$bin/$b; [[ $b == /* ]] && from=$b  # an installed program
  strip -o $to/bin/"${b##*/}" "$from"
  ldd "$from" | awk '$3 ~ /^\// {print $3}'
done | sort -u | grep -vE '/lib(c|m|dl|rt|pthread|resolv)\.so|ld-linux|libcuda|libnvidia' | while read -r f; do cp -L "$f" $to/lib/; done
cp -r templates configs $to/
cp -r tests/bench tests/jobs tests/random_jobs tests/model_folders tests/limits.py engine/ops/all_ops.def $to/tests/
mkdir $to/tests/equivalence && cp -r tests/equivalence/torch $to/tests/equivalence/
cp tests/gpu/scripts/*.{sh,py} $to/
# One window over all programs, which contain the same kernels.
(cd $to && tar c bin lib templates configs tests peers | xz --x86 --lzma2=preset=4,dict=512MiB > packed.tar.xz && rm -rf bin lib templates configs tests peers)
du -sh $to
