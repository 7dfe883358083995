// The layers, losses, optimizers and metrics of all families in all_ops.def, and what engine/spec sees of them.
#include "engine/base/error.h"
#include "engine/ops/loss_def.h"
#include "engine/ops/metric_def.h"
#include "engine/ops/op_family.h"
#include "engine/ops/optimizer_def.h"
#include "engine/ops/prediction_kind.h"
#include "engine/ops/registered_ops.h"

namespace trainctl {
namespace {

/// Concatenates one kind of definition (layers, losses, optimizers or metrics) over all families.
template <class Def>
std::vector<const Def*> collect(std::initializer_list<const Def*> OpFamily::*list) {
  std::vector<const Def*> all;
  for (const OpFamily* family : all_families()) all.insert(all.end(), (family->*list).begin(), (family->*list).end());
  return all;
}

template <class Def>
const Def* find(std::span<const Def* const> defs, std::string_view name) {
  for (const Def* def : defs)
    if (def->name == name) return def;
  return nullptr;
}

/// The part of a definition that engine/spec sees.
EntryType entry_of(const LayerDef& def) {
  EntryType type{def.name, def.doc, def.fields, def.faults};
  type.min_inputs = def.min_inputs;
  type.max_inputs = def.max_inputs;
  type.weight_field = def.weight_field;
  type.collective = def.collective;
  type.num_outputs = def.num_outputs;
  type.added = def.added;
  return type;
}

EntryType entry_of(const LossDef& def) {
  EntryType type{def.name, def.doc, def.fields};
  type.labels_are_classes = def.labels_are_classes;
  type.has_label = def.label_use != LabelUse::none;
  type.takes_class_shares = def.labels_are_classes && (def.soft_op != nullptr || def.label_use == LabelUse::composed);
  type.min_inputs = type.max_inputs = def.num_outputs;
  return type;
}

EntryType entry_of(const OptimizerDef& def) {
  EntryType type{def.name, "", def.fields, def.faults};
  type.same_in_groups = def.same_in_groups;
  type.averages = def.averages_by_rate;
  type.needs_whole_parameters = def.needs_whole_parameters != nullptr;
  type.sums_over_parameters = def.sums != nullptr;
  type.fits_servers = fits_servers(def);
  return type;
}

EntryType entry_of(const MetricDef& def) {
  EntryType type{def.name, def.doc, def.fields};
  type.reported_as = def.reported_as;
  return type;
}

template <class Def>
std::vector<EntryType> entries_of(std::span<const Def* const> defs) {
  std::vector<EntryType> types;
  for (const Def* def : defs) types.push_back(entry_of(*def));
  return types;
}

std::vector<const LayerDef*>& layers() {
  static std::vector<const LayerDef*> all = collect(&OpFamily::layers);
  return all;
}

std::vector<EntryType>& types_of_layers() {
  static std::vector<EntryType> types = entries_of(all_layers());
  return types;
}

}  // namespace

void register_layer(const LayerDef& layer) {
  types_of_layers().push_back(entry_of(layer));
  layers().push_back(&layer);
}

std::span<const LayerDef* const> all_layers() { return layers(); }
std::span<const LossDef* const> all_losses() {
  static const std::vector<const LossDef*> all = collect(&OpFamily::losses);
  return all;
}
std::span<const OptimizerDef* const> all_optimizers() {
  static const std::vector<const OptimizerDef*> all = collect(&OpFamily::optimizers);
  return all;
}
std::span<const MetricDef* const> all_metrics() {
  static const std::vector<const MetricDef*> all = collect(&OpFamily::metrics);
  return all;
}

const LayerDef* find_layer(std::string_view name) { return find(all_layers(), name); }
const LossDef* find_loss(std::string_view name) { return find(all_losses(), name); }
const MetricDef* find_metric(std::string_view name) { return find(all_metrics(), name); }
const OptimizerDef* find_optimizer(std::string_view name) { return find(all_optimizers(), name); }
const OptimizerDef& get_optimizer(std::string_view name) {
  const OptimizerDef* optimizer = find_optimizer(name);
  check(optimizer != nullptr, "there is no optimizer " + std::string(name));
  return *optimizer;
}

const std::vector<EntryType>& layer_types() { return types_of_layers(); }
const std::vector<EntryType>& loss_types() {
  static const std::vector<EntryType> types = entries_of(all_losses());
  return types;
}
const std::vector<EntryType>& metric_types() {
  static const std::vector<EntryType> types = entries_of(all_metrics());
  return types;
}
const std::vector<EntryType>& optimizer_types() {
  static const std::vector<EntryType> types = entries_of(all_optimizers());
  return types;
}

extern const OpDef binary_cross_entropy_op, focal_op, poisson_op, kl_div_op;

PredictionKind prediction_kind(std::string_view loss) {
  const LossDef* def = find_loss(loss);
  check(def != nullptr, "a loss is one of the list");
  if (def->labels_are_classes) return PredictionKind::class_logits;
  if (def->op == &poisson_op || def->op == &kl_div_op) return PredictionKind::log_values;
  return def->op == &binary_cross_entropy_op || def->op == &focal_op ? PredictionKind::logit : PredictionKind::values;
}

}  // namespace trainctl
