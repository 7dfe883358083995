// As torch.optim.SGD: the update of weights from their gradients.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const KernelDef sgd_update_kernel = {
    .name = "sgd_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{
              .what = "weights (, momentum) from gradients (, squared norm)",
              .inputs = {f32(kFlat)},
              .attrs = {{"momentum", 0.0}, {"nesterov", false}, {"weight_decay", 0.0}, {"clip_norm", 0.0}},
              .outputs = [](Infos in, const Attrs& attrs, DType dtype) {
                return updated(in, attrs.number("momentum") != 0 ? 1 : 0, dtype);
              }};
        },
};

extern const OpFamily sgd_family = {.ops = {}, .kernels = {&sgd_update_kernel}};

}  // namespace trainctl
