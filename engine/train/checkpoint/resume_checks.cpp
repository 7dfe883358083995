// Compares the state that a job keeps with the tensors of a checkpoint, before the checkpoint is restored.
#include "engine/train/checkpoint/resume_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/compile/fp8_states.h"
#include "engine/compile/last_norms.h"
#include "engine/compile/lower/packed_states.h"
#include "engine/compile/parameter_optimizer.h"
#include "engine/ops/optimizer_def.h"
#include "engine/planning/served_tables.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/spec/adapters.h"
#include "engine/train/checkpoint/table_slot.h"

namespace trainctl {
namespace {

bool is_optimizer_slot(std::string_view slot) { return slot != kWeightSlot && slot != kStateSlot; }

std::string text_of(const StateKey& key) {
  return is_optimizer_slot(key.second) ? key.first + ":" + key.second : key.first;
}

/// True if the checkpoint has only weights from before the first step, as `checkpoint import` writes it. Then the
/// optimizer starts as in a new run.
bool is_imported(const Manifest& manifest) {
  return manifest.step == 0 && std::none_of(manifest.tensors.begin(), manifest.tensors.end(),
                                            [](const StoredTensor& t) { return is_optimizer_slot(t.slot); });
}

const ServedTable* table_of(const PlannedJob& job, std::string_view tensor) {
  const auto found = std::find_if(job.tables.begin(), job.tables.end(),
                                  [&](const ServedTable& table) { return table.tensor == tensor; });
  return found == job.tables.end() ? nullptr : &*found;
}

std::string list_of(const std::string& head, const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  if (names.empty()) return "";
  std::vector<std::string> shown(names.begin(),
                                 names.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, names.size())));
  const std::string more = names.size() > kMost ? fmt::format(" and {} more", names.size() - kMost) : "";
  return "\n  " + head + join(shown) + more;
}

}  // namespace

std::map<StateKey, Shape> kept_state(const PlannedJob& job) {
  std::map<TensorId, int> groups;  // of updated parameters
  if (job.graph.loss >= 0)
    for (const Update& update : job.graph.updates)
      if (!update.gradients.empty()) groups[update.parameter] = update.group;
  std::map<StateKey, Shape> state;
  for (const VariablePlan& v : job.plan.variables) {
    const Tensor& tensor = job.graph.tensors[v.tensor];
    if (tensor.is_base || tensor.is_cache) continue;
    const bool is_parameter = tensor.kind == TensorKind::parameter;
    const ServedTable* table = table_of(job, tensor.name);
    const Shape shape = table == nullptr ? v.global_shape : Shape{table->rows, table->units};
    state[{tensor.name, std::string(is_parameter ? kWeightSlot : kStateSlot)}] = shape;
    const auto group = groups.find(v.tensor);
    if (!is_parameter || group == groups.end()) continue;
    const OptimizerSpec& spec = job.spec.optimizer;
    const Optimizer optimizer =
        optimizer_of(spec, group->second, uses_companion(job.graph, spec, v.tensor, group->second));
    for (const std::string& slot : optimizer.states()) {
      if (keeps_codes(spec, shape))
        for (const auto& [name, of_slot] : coded_states(slot, shape)) state[{tensor.name, name}] = of_slot;
      else
        state[{tensor.name, slot}] = shape;
    }
    if (const ParameterSums* sums = optimizer.def.sums; sums != nullptr && sums->states != nullptr)
      for (const auto& [slot, of_slot] : sums->states(shape)) state[{tensor.name, slot}] = of_slot;
    if (spec.average) state[{tensor.name, std::string(kAverageSlot)}] = shape;
    if (!job.plan.has_replicas()) continue;
    for (const std::string_view slot : {kAverageSlot, kOuterMomentumSlot})
      state[{tensor.name, std::string(slot)}] = shape;
  }
  if (!job.plan.has_replicas()) return state;
  std::map<StateKey, Shape> of_others;
  for (const auto& [key, shape] : state) {
    const bool is_shared = key.second == kAverageSlot || key.second == kOuterMomentumSlot;
    const bool is_frozen = key.second == kWeightSlot && !state.contains({key.first, std::string(kAverageSlot)});
    for (int replica = 1; replica < job.plan.replicas && !is_shared && !is_frozen; ++replica)
      of_others[{key.first, slot_of_replica(key.second, replica)}] = shape;
  }
  state.merge(of_others);
  return state;
}

StateDifference difference(const PlannedJob& job, const Manifest& manifest) {
  std::map<StateKey, Shape> wanted = kept_state(job);
  if (is_imported(manifest))
    std::erase_if(wanted, [](const auto& item) { return is_optimizer_slot(item.first.second); });
  StateDifference found;
  std::set<StateKey> stored;
  for (const StoredTensor& tensor : manifest.tensors) {
    const auto of_table = parse_table_slot(tensor.slot);
    if (of_table && of_table->slot == kIdsSlot) continue;  // the values of these rows have slots of their own
    const StateKey key{tensor.name, of_table ? std::string(of_table->slot) : tensor.slot};
    stored.insert(key);
    // The state of these two slots may be missing or left over, because train.on_spike and fp8.recipe: delayed may be
    // added or removed.
    if (key.second == kNormsSlot || key.second == kFp8Slot) continue;
    const auto at = wanted.find(key);
    const bool is_of_other = slot_of_first_replica(key.second) != key.second;
    if (at == wanted.end() && is_of_other && job.plan.has_replicas()) continue;  // a replica that the job no longer has
    if (at == wanted.end())
      found.extra.push_back(text_of(key));
    else if (of_table ? !is_rows_of(at->second, tensor.shape) : at->second != tensor.shape)
      found.reshaped.push_back(fmt::format("{} is {} in the job, but {} in the checkpoint", text_of(key),
                                           to_string(at->second), to_string(tensor.shape)));
  }
  for (const auto& [key, shape] : wanted) {
    const bool is_in_base = manifest.base && key.second == kWeightSlot && manifest.base->has(key.first);
    if (is_imported(manifest) && is_step_statistic(key.first)) continue;
    const std::string_view of_first =
        slot_of_first_replica(key.second);  // a new replica starts from the state of the first one
    if (of_first != key.second && stored.contains({key.first, std::string(of_first)})) continue;
    if (!stored.contains(key) && !is_in_base) found.missing.push_back(text_of(key));
  }
  return found;
}

namespace {

/// The frozen base that a checkpoint leaves out is read from the job's `weights`, which must therefore be set. A job
/// whose checkpoints leave the base out does not resume from a checkpoint that contains a base, since that may be
/// another one.
void require_same_base(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint) {
  if (manifest.base && !job.spec.weights)
    throw EnvError(fmt::format("{} contains only what was trained; its base is in {}: set weights.from to that path",
                               checkpoint, manifest.base->from));
  if (manifest.base || !saves_without_base(job.spec)) return;
  const auto of_base = std::find_if(job.graph.tensors.begin(), job.graph.tensors.end(), [&](const Tensor& tensor) {
    return tensor.is_base && manifest.find(tensor.name, kWeightSlot) != nullptr;
  });
  if (of_base != job.graph.tensors.end())
    throw EnvError(
        fmt::format("{} contains the frozen parameter {}, but this job loads that parameter from weights.from and "
                    "omits it from its checkpoints; to resume from this checkpoint, remove `weights` from the job",
                    checkpoint, of_base->name));
}

}  // namespace

void require_same_state(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint, bool partial) {
  require_same_base(job, manifest, checkpoint);
  const StateDifference found = difference(job, manifest);
  if (found.empty()) return;
  const bool nothing_fits = found.extra.size() + found.reshaped.size() == manifest.tensors.size();
  if (partial && !nothing_fits) return;
  const std::string all = list_of("missing in the checkpoint: ", found.missing) +
                          list_of("missing in the job: ", found.extra) + list_of("", found.reshaped);
  if (manifest.weights_only && found.extra.empty() && found.reshaped.empty())
    throw EnvError(checkpoint + " contains only the final weights of a run, without the optimizer state:" + all +
                   "\n--partial continues from the weights with a newly initialized optimizer; a run with "
                   "train.checkpoint: auto saves its whole state");
  throw EnvError(checkpoint + " belongs to a different network or optimizer:" + all +
                 (nothing_fits ? "\nnone of its tensors fits this job"
                               : "\n--partial restores the tensors that fit and initializes the rest"));
}

void require_same_weights(const PlannedJob& job, const Manifest& manifest, const std::string& checkpoint) {
  if (manifest.base) require_same_base(job, manifest, checkpoint);
  std::vector<std::string> missing, reshaped;
  for (const VariablePlan& v : job.plan.variables) {
    const Tensor& tensor = job.graph.tensors[v.tensor];
    if (tensor.is_cache) continue;
    const StoredTensor* stored =
        manifest.find(tensor.name, tensor.kind == TensorKind::parameter ? kWeightSlot : kStateSlot);
    if (stored == nullptr && !saved_ids(manifest, tensor.name).empty()) continue;  // rows of a table
    if (stored == nullptr && manifest.base && manifest.base->has(tensor.name)) continue;
    if (stored == nullptr && is_step_statistic(tensor.name)) continue;
    if (stored == nullptr)
      missing.push_back(tensor.name);
    else if (stored->shape != v.global_shape)
      reshaped.push_back(fmt::format("{} is {} in the job, but {} in the checkpoint", tensor.name,
                                     to_string(v.global_shape), to_string(stored->shape)));
  }
  if (missing.empty() && reshaped.empty()) return;
  throw EnvError(checkpoint + " belongs to a different network:" + list_of("missing in the checkpoint: ", missing) +
                 list_of("", reshaped));
}

}  // namespace trainctl
