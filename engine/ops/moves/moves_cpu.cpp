// Moves that the compiler inserts: parts of a tensor to and from the order that collectives need, sums of gradients,
// and zeros.
#include <cstring>

#include "engine/base/error.h"
#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/kernel.h"

namespace trainctl {
namespace {

/// The sizes of a tensor seen as [outer, parts, inner], where inner is in bytes.
struct Parts {
  int64_t outer, parts;
  size_t bytes;
};

Parts parts_of(const KernelCall& call) {
  const Parts p{call.attrs.integer("outer"), call.attrs.integer("parts"),
                static_cast<size_t>(call.attrs.integer("inner") * byte_size(call.in[0].dtype))};
  check(p.outer * p.parts * call.attrs.integer("inner") == call.in[0].size(), "outer * parts * inner is not the input");
  return p;
}

void copy_rows(const std::byte* from, size_t from_step, std::byte* to, size_t to_step, int64_t rows, size_t bytes) {
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + static_cast<size_t>(i) * to_step, from + static_cast<size_t>(i) * from_step, bytes);
  }
}

CpuKernel prepare_copy_slice(const KernelCall& call) {
  const Parts p = parts_of(call);
  const auto index = static_cast<size_t>(call.attrs.integer("index"));
  return [=, from = call.in[0].as<std::byte>() + index * p.bytes, to = call.out[0].as<std::byte>()] {
    copy_rows(from, static_cast<size_t>(p.parts) * p.bytes, to, p.bytes, p.outer, p.bytes);
  };
}

CpuKernel prepare_pack(const KernelCall& call) {
  return [p = parts_of(call), from = call.in[0].as<std::byte>(), to = call.out[0].as<std::byte>()] {
    const size_t row = static_cast<size_t>(p.parts) * p.bytes, part = static_cast<size_t>(p.outer) * p.bytes;
    for (size_t i = 0; i < static_cast<size_t>(p.parts); ++i) {
      copy_rows(from + i * p.bytes, row, to + i * part, p.bytes, p.outer, p.bytes);
    }
  };
}

CpuKernel prepare_unpack(const KernelCall& call) {
  return [p = parts_of(call), from = call.in[0].as<std::byte>(), to = call.out[0].as<std::byte>()] {
    const size_t row = static_cast<size_t>(p.parts) * p.bytes, part = static_cast<size_t>(p.outer) * p.bytes;
    for (size_t i = 0; i < static_cast<size_t>(p.parts); ++i) {
      copy_rows(from + i * part, p.bytes, to + i * p.bytes, row, p.outer, p.bytes);
    }
  };
}

CpuKernel prepare_accumulate(const KernelCall& call) {
  return [n = call.out[0].size(), from = call.in[0].as<float>(), to = call.out[0].as<float>(), threads = call.threads] {
    cpu::over_elements(threads, n, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    });
  };
}

CpuKernel prepare_zero(const KernelCall& call) {
  return [to = call.out[0].data, bytes = static_cast<size_t>(call.out[0].size() * byte_size(call.out[0].dtype))] {
    if (bytes > 0) std::memset(to, 0, bytes);
  };
}

}  // namespace

extern const CpuKernels moves_cpu = {{"copy_slice", prepare_copy_slice},
                                     {"pack", prepare_pack},
                                     {"unpack", prepare_unpack},
                                     {"accumulate", prepare_accumulate},
                                     {"zero", prepare_zero}};

}  // namespace trainctl
