// Cases of unpack_weight: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <cmath>

#include "engine/graph/packing.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

using namespace naive;

Attrs packed_as(const char* packing) { return {{"packing", std::string(packing)}}; }

/// Words in [0, 0x3f800000): read as f32, the first word of a block is between 0 and 1.
CaseInput words(Shape shape) { return ids(std::move(shape), 0x3f800000); }

Outputs unpack_weight(const Inputs& in, const Attrs& attrs) {
  const bool is_nf4 = attrs.text("packing") == "nf4";
  if (!is_nf4 && attrs.text("packing") != "int8") return {in[0]};
  const int64_t together = is_nf4 ? 8 : 4, words_of_block = 1 + 64 / together;
  Shape shape = in[0].shape;
  shape.back() = shape.back() / words_of_block * 64;
  Tensor64 out = zeros(shape);
  for (size_t i = 0; i < out.values.size(); ++i) {
    const auto* block = in[0].values.data() + static_cast<int64_t>(i) / 64 * words_of_block;
    const double most = std::bit_cast<float>(static_cast<uint32_t>(block[0]));
    const auto place = static_cast<int64_t>(i % 64);
    const auto word = static_cast<uint32_t>(block[1 + place / together]);
    const auto code = word >> (place % together * 32 / together) & (is_nf4 ? 15u : 255u);
    out.values[i] = is_nf4 ? kNf4Codes[code] * most : static_cast<double>(static_cast<int8_t>(code)) * most / 127;
  }
  return {out};
}

}  // namespace

extern const OpCases unpack_weight_cases = {
    .rows = {{"unpack_weight", {words({6, 9})}, packed_as("nf4"), {{6, 64}}},
             {"unpack_weight", {words({4, 9 * 12})}, packed_as("nf4"), {{4, 64 * 12}}},
             {"unpack_weight", {words({5, 17 * 6})}, packed_as("int8"), {{5, 64 * 6}}}},
    .references = {{"unpack_weight", unpack_weight}},
    .rules = {{{"unpack_weight", {{{2, 27}, DType::i32}}, packed_as("nf4")}, "a(bw)->a(be)", "we", {{2, 192}}},
              {{"unpack_weight", {{{2, 34}, DType::i32}}, packed_as("int8")}, "a(bw)->a(be)", "we", {{2, 128}}},
              {{"unpack_weight", {{{2, 5}, DType::bf16}}, packed_as("bf16")}, "ab->ab", "", {{2, 5}}}},
    .shape_errors = {{{"unpack_weight", {{{2, 9}}}, packed_as("nf4")},
                      "unpack_weight expects i32 of nf4, but got [2, 9]"},
                     {{"unpack_weight", {{{2, 9}, DType::i32}}, packed_as("int8")},
                      "unpack_weight: rows of int8 consist of blocks of 17 words, but the input is [2, 9] i32"},
                     {{"unpack_weight", {{{2, 9}, DType::i32}}}, "unpack_weight: packing must be bf16, int8 or nf4"}},
};

}  // namespace trainctl
