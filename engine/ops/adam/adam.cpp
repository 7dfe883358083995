// As torch.optim.Adam and AdamW: the update of weights from their gradients.
#include "engine/ops/examples.h"
#include "engine/ops/op_family.h"
#include "engine/ops/program_kernels.h"

namespace trainctl {

extern const KernelDef adam_update_kernel = {
    .name = "adam_update",
    .updates_outputs = true,
    .example =
        [] {
          using namespace example;
          return KernelExample{.what = "weights, m, v from gradients (, squared norm)",
                               .inputs = {f32(kFlat)},
                               .attrs = {{"beta1", 0.9},
                                         {"beta2", 0.999},
                                         {"eps", 1e-8},
                                         {"weight_decay", 0.0},
                                         {"decoupled", false},
                                         {"clip_norm", 0.0}},
                               .outputs = [](Infos in, const Attrs&, DType dtype) { return updated(in, 2, dtype); }};
        },
};

extern const OpFamily adam_family = {.ops = {}, .kernels = {&adam_update_kernel}};

}  // namespace trainctl
