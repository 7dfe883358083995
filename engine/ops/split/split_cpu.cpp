// split and concat on a CPU: they copy strips, which are rows of bytes with a stride (parts.h).
#include <cstring>

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"
#include "engine/ops/split/parts.h"

namespace trainctl {
namespace {

/// `blocks`: the elements of other ranks are read from the last input, into which the exchange has written them
/// (split_apply and concat_apply).
template <PartsKernel kernel, bool blocks = false>
CpuKernel prepare_split(const KernelCall& call) {
  const TensorArg& out = call.out[0];
  return [c = strip_copies(call, kernel, blocks), to = out.as<std::byte>(),
          bytes = static_cast<size_t>(out.size() * byte_size(out.dtype)), threads = call.threads] {
    if (c.has_gaps) std::memset(to, 0, bytes);
    for (const StripCopy& s : c.strips) {
      cpu::each_row(threads, c.rows, s.row / 4, [&](int64_t r) {
        std::memcpy(s.to + r * s.to_row, s.from + r * s.from_row, static_cast<size_t>(s.row));
      });
    }
  };
}

}  // namespace

extern const CpuKernels split_cpu = {{"split", prepare_split<PartsKernel::split>},
                                     {"split_pack", prepare_split<PartsKernel::split_pack>},
                                     {"split_apply", prepare_split<PartsKernel::split, true>},
                                     {"concat", prepare_split<PartsKernel::concat>},
                                     {"concat_pack", prepare_split<PartsKernel::concat_pack>},
                                     {"concat_apply", prepare_split<PartsKernel::concat, true>}};

}  // namespace trainctl
