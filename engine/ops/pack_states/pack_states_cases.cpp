// Cases of pack_states: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/ops/pack_states/packed_state.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

/// The values of the codes, as in bitsandbytes.functional.create_dynamic_map. Each decade is divided into equal parts,
/// whose midpoints are values; the number of parts doubles from decade to decade. 0 and 1 are values too.
std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> values = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = (is_signed ? 1 : 2) << decade;
    for (int part = 0; part < parts; ++part) {
      const double middle = (0.1 + 0.9 * (part + 0.5) / parts) * std::pow(10.0, decade - 6);
      values.push_back(middle);
      if (is_signed) values.push_back(-middle);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

/// The code of element i: byte i of the words.
size_t code_at(const Tensor64& words, size_t i) {
  return static_cast<size_t>(static_cast<int64_t>(words.values[i / 4]) >> 8 * (i % 4) & 255);
}

/// Unpacks states. A bf16 input only changes its type. Otherwise the inputs are words of four codes each, and one scale
/// for each block.
naive::Outputs unpack_states(const NaiveCall& call) {
  if (call.in.size() == 1) return {call.in[0]};
  const std::vector<double> map = dynamic_map(!call.attrs.flag("squares"));
  naive::Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i)
    out[0].values[i] = map[code_at(call.in[0], i)] * call.in[1].values[i / 256];
  return out;
}

/// Packs states as int8: the code of the nearest value for each element, and the largest magnitude of each block.
naive::Outputs pack_codes(const NaiveCall& call) {
  naive::Outputs out = call.before;
  if (call.attrs.flag("skip_not_finite") && !std::isfinite(call.in[1].values[0])) return out;
  const std::vector<double> map = dynamic_map(!call.attrs.flag("squares"));
  const std::vector<double>& from = call.in[0].values;
  for (double& word : out[0].values) word = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t block = i / 256, end = std::min(from.size(), (block + 1) * 256);
    double most = 0;
    for (size_t k = block * 256; k < end; ++k) most = std::max(most, std::abs(from[k]));
    out[1].values[block] = most;
    const double ratio = most > 0 ? from[i] / most : 0;
    size_t code = 0;
    for (size_t k = 1; k < map.size(); ++k)
      if (std::abs(ratio - map[k]) < std::abs(ratio - map[code])) code = k;
    out[0].values[i / 4] += static_cast<double>(code << 8 * (i % 4));
  }
  for (double& word : out[0].values)
    if (word >= 0x1p31) word -= 0x1p32;  // i32 has a sign
  return out;
}

/// The neighbor in bf16 that the random bits of (seed, parameter, state, step, element) choose.
naive::Outputs pack_states(const NaiveCall& call) {
  if (call.before.size() == 2) return pack_codes(call);
  const Ints parameter = call.attrs.int_lists("parameters").at(0);  // a matrix
  const int64_t cols = parameter[4], whole_cols = parameter[6];
  naive::Outputs out = call.before;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    const auto element = static_cast<int64_t>(i);
    const int64_t row = element / cols + parameter[7], col = element % cols + parameter[8];
    const auto value = static_cast<float>(call.in[0].values[i]);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const auto at = static_cast<uint64_t>(row * whole_cols + col);
    const uint64_t high = uint64_t{call.scalars.step} << 8 | static_cast<uint64_t>(call.attrs.integer("state"));
    const uint64_t key = stream_key(0, static_cast<uint64_t>(parameter[1]));
    bits = (bits + (philox(key, at / 4, high).v[at % 4] >> 16)) & 0xFFFF0000u;
    float rounded = 0;
    std::memcpy(&rounded, &bits, sizeof rounded);
    out[0].values[i] = static_cast<double>(rounded);
  }
  return out;
}

std::vector<KernelCase> pack_states_kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t n : {1, 300})
    calls.push_back({"unpack_states", {{.shape = {n}, .dtype = DType::bf16}}, {unwritten({n})}, {}, 0});
  const Attrs attrs{
      {"first", int64_t{0}}, {"state", int64_t{1}}, {"parameters", std::vector<Ints>{{0, 77, 2, 5, 7, 9, 11, 4, 3}}}};
  calls.push_back({"pack_states", {{.shape = {35}}}, {unwritten({35}, DType::bf16)}, attrs, 0, {.step = 6}});
  using Fill = CaseOperand::Fill;
  const Shape block = {512}, words = {128}, scales = {2};
  for (const bool squares : {false, true}) {
    const Attrs kind = squares ? Attrs{{"squares", true}} : Attrs{};
    const CaseOperand codes{.shape = words, .fill = Fill::ids, .dtype = DType::i32, .number = 0x1p31};
    calls.push_back(
        {"unpack_states", {codes, {.shape = scales, .fill = Fill::positive}}, {unwritten(block)}, kind, 2e-6});
    const CaseOperand state{.shape = block, .fill = squares ? Fill::positive : Fill::values};
    for (const double norm : {4.0, HUGE_VAL}) {
      Attrs all = kind;
      all.set("skip_not_finite", true);
      calls.push_back({"pack_states",
                       {state, {.shape = {1}, .fill = Fill::number, .number = norm}},
                       {codes, {.shape = scales, .fill = Fill::positive}},
                       all,
                       0});
    }
  }
  return calls;
}

}  // namespace

extern const OpCases pack_states_cases = {
    .kernels = pack_states_kernels(),
    .kernel_references = {{"unpack_states", unpack_states}, {"pack_states", pack_states}}};

}  // namespace trainctl
