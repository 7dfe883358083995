// Cases of pack_states: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/ops/pack_states/packed_state.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

/// bf16 to f32 changes no value.
naive::Outputs unpack_states(const NaiveCall& call) { return {call.in[0]}; }

/// The neighbor in bf16 that the random bits of (seed, parameter, state, step, element) choose.
naive::Outputs pack_states(const NaiveCall& call) {
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
  return calls;
}

}  // namespace

extern const OpCases pack_states_cases = {
    .kernels = pack_states_kernels(),
    .kernel_references = {{"unpack_states", unpack_states}, {"pack_states", pack_states}}};

}  // namespace trainctl
