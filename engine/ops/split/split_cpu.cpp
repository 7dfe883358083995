// split and concat copy rows: x is [outer, sizes added up, inner], part i is [outer, sizes[i], inner].
#include <cstring>
#include <vector>

#include "engine/base/error.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// One part of the whole, in bytes.
struct Strip {
  std::byte* data;      ///< of the part
  size_t offset, row;   ///< in a row of the whole; of the part
};

struct Strips {
  std::byte* whole;
  size_t whole_row;
  int64_t rows = 1;
  std::vector<Strip> parts;
  bool has_gaps;

  Strips(const KernelCall& call, const TensorArg& of, const std::vector<TensorArg>& args) : whole(of.as<std::byte>()) {
    const auto dim = static_cast<size_t>(call.attrs.integer("dim"));
    size_t inner = static_cast<size_t>(byte_size(of.dtype));
    for (size_t d = dim + 1; d < of.shape.size(); ++d) inner *= static_cast<size_t>(of.shape[d]);
    for (size_t d = 0; d < dim; ++d) rows *= of.shape[d];
    whole_row = static_cast<size_t>(of.shape[dim]) * inner;
    const Ints offsets = call.attrs.ints("offsets");
    size_t next = 0, covered = 0;
    for (size_t i = 0; i < args.size(); ++i) {
      check(args[i].dtype == of.dtype, "split and concat move elements as they are");
      const size_t offset = offsets.empty() ? next : static_cast<size_t>(offsets[i]) * inner;
      const size_t row = static_cast<size_t>(args[i].shape[dim]) * inner;
      parts.push_back({args[i].as<std::byte>(), offset, row});
      next = offset + row;
      covered += row;
    }
    check(next <= whole_row, "the parts are within the whole");
    has_gaps = covered < whole_row;
  }
};

CpuKernel prepare_split(const KernelCall& call) {
  return [s = Strips(call, call.in[0], call.out)] {
    for (const Strip& part : s.parts)
      for (int64_t r = 0; r < s.rows; ++r)
        std::memcpy(part.data + static_cast<size_t>(r) * part.row,
                    s.whole + static_cast<size_t>(r) * s.whole_row + part.offset, part.row);
  };
}

CpuKernel prepare_concat(const KernelCall& call) {
  return [s = Strips(call, call.out[0], call.in)] {
    if (s.has_gaps) std::memset(s.whole, 0, static_cast<size_t>(s.rows) * s.whole_row);
    for (const Strip& part : s.parts)
      for (int64_t r = 0; r < s.rows; ++r)
        std::memcpy(s.whole + static_cast<size_t>(r) * s.whole_row + part.offset,
                    part.data + static_cast<size_t>(r) * part.row, part.row);
  };
}

}  // namespace

extern const CpuKernels split_cpu = {{"split", prepare_split}, {"concat", prepare_concat}};

}  // namespace trainctl
