// Every layer, loss and optimizer, in the order of the reference (docs/job.md). Adding one: its folder, and a name
// here.
#include <algorithm>

#include "engine/base/error.h"
#include "engine/ops/layer_def.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/optimizer_def.h"

namespace trainctl {

extern const LayerDef flatten_layer, reshape_layer, transpose_layer, dense_layer, matmul_layer, add_layer, mul_layer;
extern const LayerDef relu_layer, sigmoid_layer, tanh_layer, gelu_layer, softmax_layer, dropout_layer;
extern const LayerDef batch_norm_layer, layer_norm_layer, embedding_layer, reduce_sum_layer, reduce_mean_layer;
extern const LayerDef all_reduce_layer, all_gather_layer, reduce_scatter_layer, all_to_all_layer, broadcast_layer;
extern const LossDef mae_loss, mse_loss, softmax_cross_entropy_loss;
extern const OptimizerDef sgd_optimizer, adam_optimizer, adamw_optimizer;

namespace {

// One a line.
// clang-format off
const LayerDef* const kLayers[] = {
    &flatten_layer,
    &reshape_layer,
    &transpose_layer,
    &dense_layer,
    &matmul_layer,
    &add_layer,
    &mul_layer,
    &relu_layer,
    &sigmoid_layer,
    &tanh_layer,
    &gelu_layer,
    &softmax_layer,
    &dropout_layer,
    &batch_norm_layer,
    &layer_norm_layer,
    &embedding_layer,
    &reduce_sum_layer,
    &reduce_mean_layer,
    &all_reduce_layer,
    &all_gather_layer,
    &reduce_scatter_layer,
    &all_to_all_layer,
    &broadcast_layer,
};
// clang-format on

const LossDef* const kLosses[] = {
    &mae_loss,
    &mse_loss,
    &softmax_cross_entropy_loss,
};

const OptimizerDef* const kOptimizers[] = {
    &sgd_optimizer,
    &adam_optimizer,
    &adamw_optimizer,
};

template <class Def>
const Def* find(std::span<const Def* const> defs, std::string_view name) {
  for (const Def* def : defs)
    if (def->name == name) return def;
  return nullptr;
}

/// What spec sees of a def.
EntryType entry_of(const LayerDef& def) {
  EntryType type{def.name, def.doc, def.fields, def.faults};
  type.min_inputs = def.min_inputs;
  type.max_inputs = def.max_inputs;
  type.weight_field = def.weight_field;
  type.collective = def.collective;
  return type;
}

EntryType entry_of(const LossDef& def) {
  EntryType type{def.name, def.doc, def.fields};
  type.labels_are_classes = def.labels_are_classes;
  return type;
}

EntryType entry_of(const OptimizerDef& def) { return {def.name, "", def.fields, def.faults}; }

template <class Def>
std::vector<EntryType> entries_of(std::span<const Def* const> defs) {
  std::vector<EntryType> types;
  for (const Def* def : defs) types.push_back(entry_of(*def));
  return types;
}

}  // namespace

std::span<const LayerDef* const> all_layers() { return kLayers; }
std::span<const LossDef* const> all_losses() { return kLosses; }
std::span<const OptimizerDef* const> all_optimizers() { return kOptimizers; }

const LayerDef* find_layer(std::string_view name) { return find(all_layers(), name); }
const LossDef* find_loss(std::string_view name) { return find(all_losses(), name); }
const OptimizerDef* find_optimizer(std::string_view name) { return find(all_optimizers(), name); }
const OptimizerDef& get_optimizer(std::string_view name) {
  const OptimizerDef* optimizer = find_optimizer(name);
  check(optimizer != nullptr, "there is no optimizer " + std::string(name));
  return *optimizer;
}

bool is_update_kernel(std::string_view kernel) {
  return std::any_of(std::begin(kOptimizers), std::end(kOptimizers),
                     [&](const OptimizerDef* optimizer) { return optimizer->kernel == kernel; });
}

const std::vector<EntryType>& layer_types() {
  static const std::vector<EntryType> types = entries_of(all_layers());
  return types;
}
const std::vector<EntryType>& loss_types() {
  static const std::vector<EntryType> types = entries_of(all_losses());
  return types;
}
const std::vector<EntryType>& optimizer_types() {
  static const std::vector<EntryType> types = entries_of(all_optimizers());
  return types;
}

}  // namespace trainctl
