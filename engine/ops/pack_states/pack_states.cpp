// pack_states, unpack_states: optimizer states between f32, in which updates compute, and the type in which they are
// kept (packed_state.h).
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {
namespace {

Attrs placed_matrix() {
  using namespace example;
  return {{"first", int64_t{0}},
          {"state", int64_t{0}},
          {"parameters", std::vector<Ints>{{0, 0, 2, kRows, kCols, kRows, kCols, 0, 0}}}};
}

}  // namespace

/// in: bf16 [n], or codes i32 [n / 4] and scales [n / 256]; out: f32 [n]. attr squares: the codes are those of squares.
extern const KernelDef unpack_states_kernel = {
    .name = "unpack_states",
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "states in f32, from bf16",
              .inputs = {{kFlat}},
              .optional = {{"squares", true}},
              .outputs = [](Infos in, const Attrs&, DType) -> std::vector<TensorInfo> { return {{in[0].shape}}; }};
        },
};

/// in: f32 [n], (squared norm); out: bf16 [n], or codes and scales. attrs squares, state (its index), and those of
/// placed_parameters.h for bf16; skip_not_finite.
extern const KernelDef pack_states_kernel = {
    .name = "pack_states",
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "states in bf16, rounded at random, from f32",
                               .inputs = {f32(kFlat)},
                               .attrs = placed_matrix(),
                               .optional = {{"squares", true}, {"skip_not_finite", true}},
                               .outputs = [](Infos in, const Attrs&, DType) -> std::vector<TensorInfo> {
                                 return {{in[0].shape, DType::bf16}};
                               }};
        },
};

extern const OpFamily pack_states_family = {
    .ops = {}, .kernels = {&unpack_states_kernel, &pack_states_kernel}, .profile_part = "optimizer"};

}  // namespace trainctl
