// Kernels that move data in compiled programs: they copy one part of a tensor, arrange parts in the order that
// collectives need and back, add up gradients, and write zeros.
#include <fmt/format.h>

#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

/// The output of a kernel that only reorders elements. Checks that the input has outer * parts * inner elements.
std::vector<TensorInfo> rearranged(Infos in, const Attrs& attrs, DType) {
  const int64_t outer = attrs.integer("outer"), parts = attrs.integer("parts"), inner = attrs.integer("inner");
  example::expect(outer > 0 && parts > 0 && inner > 0 && num_elements(in[0].shape) == outer * parts * inner,
                  fmt::format("outer {} x parts {} x inner {} is not the number of elements of {}", outer, parts, inner,
                              to_string(in[0].shape)));
  return {in[0]};
}

std::vector<TensorInfo> one_part(Infos in, const Attrs& attrs, DType dtype) {
  rearranged(in, attrs, dtype);
  const int64_t index = attrs.integer("index");
  example::expect(index >= 0 && index < attrs.integer("parts"), fmt::format("part {} does not exist", index));
  return {{{attrs.integer("outer") * attrs.integer("inner")}, in[0].dtype}};
}

const Attrs& parts() {
  static const Attrs attrs = {{"outer", int64_t{64}}, {"parts", int64_t{4}}, {"inner", int64_t{16384}}};
  return attrs;
}

Attrs part() {
  Attrs attrs = parts();
  attrs.set("index", int64_t{1});
  return attrs;
}

}  // namespace

extern const KernelDef copy_slice_kernel = {
    .name = "copy_slice",
    .example =
        [] {
          return KernelExample{.what = "one of `parts` parts of each of `outer` rows",
                               .inputs = {{example::kFlat}},
                               .attrs = part(),
                               .outputs = one_part};
        },
};

extern const KernelDef pack_kernel = {
    .name = "pack",
    .example =
        [] {
          return KernelExample{.what = "[outer, parts, inner] to [parts, outer, inner]",
                               .inputs = {{example::kFlat}},
                               .attrs = parts(),
                               .outputs = rearranged};
        },
};

extern const KernelDef unpack_kernel = {
    .name = "unpack",
    .example =
        [] {
          return KernelExample{.what = "[parts, outer, inner] to [outer, parts, inner]",
                               .inputs = {{example::kFlat}},
                               .attrs = parts(),
                               .outputs = rearranged};
        },
};

extern const KernelDef accumulate_kernel = {
    .name = "accumulate",
    .accumulates = 1,
    .cost =
        [](Infos in, Infos out, const Attrs&) {
          const int64_t written = bytes_of(out[0]) * (out[0].dtype == DType::f32 ? 2 : 1);
          return Cost{.bytes = static_cast<double>(bytes_of(in[0]) + written)};
        },
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "out += in", .inputs = {f32(kFlat)}, .outputs = like_first};
        },
};

extern const KernelDef zero_kernel = {
    .name = "zero",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "out = 0", .inputs = {f32(kFlat)}, .outputs = like_first, .reads_inputs = false};
        },
};

extern const OpFamily moves_family = {
    .ops = {},
    .kernels = {&copy_slice_kernel, &pack_kernel, &unpack_kernel, &accumulate_kernel, &zero_kernel},
};

}  // namespace trainctl
