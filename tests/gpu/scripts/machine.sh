# Sourced by the scripts beside it on the machine with the GPU: unpacks what pack.sh packed into $at, finds CUDA's libraries.
# Afterwards: $at/bin/trainctl, $at/templates, …; run COMMAND… prints the command, its output and exit status, $LIMIT seconds at most.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
at=/tmp/trainctl_gpu; out=${OUT:-/tmp}
if [ ! -e $at/done ]; then
  mkdir -p $at && tar xJf "$here/packed.tar.xz" -C $at && touch $at/done
fi
cd $at
export LD_LIBRARY_PATH=$at/lib
TRAINCTL_CUDA_LIBRARY_PATH=$(python3 - <<'P'
import glob, os, site
roots = {os.path.dirname(os.path.dirname(__import__("torch").__file__)), *site.getsitepackages()}
print(":".join(d for r in roots for d in glob.glob(r + "/nvidia/*/lib")))
P
)
export TRAINCTL_CUDA_LIBRARY_PATH
one="launch.device=cuda launch.ranks=1 parallel.mode=stand_alone"
run() { echo "--- $*"; timeout "${LIMIT:-500}" "$@"; echo "rc $?"; }
