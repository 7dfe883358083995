// A frozen weight as kernels read it, from its stored form (graph/packing.h): words [.., n] i32, or [.., n] bf16, ->
// [.., columns], f32, or a 16-bit float with the attr bf16 or f16. A row is cut between blocks.
#include <fmt/format.h>

#include "engine/graph/packing.h"
#include "engine/ops/examples.h"
#include "engine/ops/expect.h"
#include "engine/ops/float_type.h"
#include "engine/ops/op_family.h"

namespace trainctl {

extern const OpDef unpack_weight_op = {
    .name = "unpack_weight",
    .infer = [](Infos in, const Attrs& attrs) -> std::vector<TensorInfo> {
      expect_inputs("unpack_weight", in, 1, 1);
      expect_ndim("unpack_weight", in[0], 1);
      const Packing packing = packing_of(attrs.text("packing"));
      if (packing == Packing::none) shape_error("unpack_weight: packing must be bf16, int8 or nf4");
      const DType stored = has_blocks(packing) ? DType::i32 : DType::bf16;
      if (in[0].dtype != stored)
        shape_error(fmt::format("unpack_weight expects {} of {}, but got {}", to_string(stored), to_string(packing),
                                to_string(in[0])));
      if (has_blocks(packing) && in[0].shape.back() % words_per_block(packing) != 0)
        shape_error(fmt::format("unpack_weight: rows of {} consist of blocks of {} words, but the input is {}",
                                to_string(packing), words_per_block(packing), to_string(in[0])));
      return {{unpacked_shape(in[0].shape, packing), float_type_of(attrs)}};
    },
    .rule = [](Infos in, const Attrs& attrs) -> RuleText {
      const std::string rows = letters(in[0].shape.size() - 1, "bwe");
      const Packing packing = packing_of(attrs.text("packing"));
      if (!has_blocks(packing)) return {rows + "b->" + rows + "b"};
      return {.text = rows + "(bw)->" + rows + "(be)",
              .uncuttable = "we",
              .why_not = "the elements of a block have one scale",
              .sizes = {{'w', words_per_block(packing)}, {'e', kPackedBlock}},
              .why_size = "weights are stored in blocks"};
    },
    .kernel = {.name = "unpack_weight",
               .cost =
                   [](Infos in, Infos out, const Attrs&) {
                     return Cost{.flops = 2.0 * static_cast<double>(num_elements(out[0].shape)),
                                 .bytes = static_cast<double>(bytes_of(in[0]) + bytes_of(out[0]))};
                   },
               .example =
                   [] {
                     using namespace example;
                     return KernelExample{.what = "a frozen weight of 4 bits per element (nf4) as products read it",
                                          .inputs = {{{1024, 1024 / kPackedBlock * words_per_block(Packing::nf4)},
                                                      KernelExample::Fill::indices}},
                                          .attrs = {{"packing", std::string("nf4")}},
                                          .optional = {{"bf16", true}},
                                          .below = [](Infos, const Attrs&) -> int64_t { return 2147483647; }};
                   }},
    .runs_again = true,
};

extern const OpFamily unpack_weight_family = {.ops = {&unpack_weight_op}};

}  // namespace trainctl
