// A job of the same form that is small enough to run with all its ranks as threads of one process: a smaller batch,
// shorter sequences, fewer repeated blocks, narrower layers.
#include "engine/train/verification/reduced_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/compile/report/product_flops.h"
#include "engine/ops/optimizer_def.h"
#include "engine/train/data/read_and_plan.h"

namespace trainctl {
namespace {

constexpr double kOperationsPerUpdate = 200;  // of one element, and of its initial value
constexpr double kVerifiedEps = 1e-3;
constexpr int64_t kLeastRows = 2;  // of a rank's micro-batch, for layers that compute over rows
constexpr int64_t kLeastLength = 16, kLeastWidth = 64, kLeastImage = 32;

/// Fields of layers that are a number of features, channels or classes.
constexpr std::array<std::string_view, 6> kWidths = {"units",    "hidden", "shared_hidden",
                                                     "channels", "vocab",  "classes"};

/// A reduced job and what has changed; nothing if it cannot be reduced in this way.
using Reduction = std::optional<std::pair<JobSpec, std::string>>;

Reduction halve_batch(const JobSpec& spec) {
  const int64_t parts = int64_t{spec.parallel.micro_batches} * std::max(spec.launch.ranks / spec.parallel.stages, 1);
  const int64_t batch = spec.dataset.batch;
  if (batch % 2 != 0 || batch / 2 % parts != 0 || batch / 2 < kLeastRows * parts) return {};
  JobSpec smaller = spec;
  smaller.dataset.batch = batch / 2;
  if (smaller.dataset.samples > 0) smaller.dataset.samples = std::max(smaller.dataset.batch, spec.dataset.samples / 2);
  return {{std::move(smaller), "batch"}};
}

/// Ranks that share the batch get fewer rows than halve_batch leaves, down to one each.
Reduction halve_last_rows(const JobSpec& spec) {
  const int64_t batch = spec.dataset.batch;
  if (batch % 2 != 0 || batch / 2 % spec.parallel.micro_batches != 0) return {};
  JobSpec smaller = spec;
  smaller.dataset.batch = batch / 2;
  return {{std::move(smaller), "batch"}};
}

Reduction halve_length(const JobSpec& spec) {
  JobSpec smaller = spec;
  DatasetSpec& set = smaller.dataset;
  const int64_t least = kLeastLength * std::max(spec.parallel.context, 1);
  const auto halve = [&](int64_t& length) {
    if (length % 2 != 0 || length / 2 < least) return false;
    length /= 2;
    return true;
  };
  if (set.type == "random" && set.dtype == "i32" && set.shape.size() == 1) {
    const int64_t before = set.shape[0];
    if (!halve(set.shape[0])) return {};
    for (int64_t& label : set.label_shape)
      if (label == before) label = set.shape[0];
  } else if (set.length == 0 || !halve(set.length)) {
    return {};
  }
  return {{std::move(smaller), "sequence length"}};
}

/// A name such as "h.3.attn", in pieces: block "h", number 3.
struct BlockName {
  std::string block;
  int64_t number = -1;  ///< -1: the layer is in no repeated block
  std::string rest;
};

BlockName block_name(const std::string& layer) {
  const size_t dot = layer.find('.');
  if (dot == std::string::npos) return {};
  size_t end = dot + 1;
  while (end < layer.size() && std::isdigit(static_cast<unsigned char>(layer[end])) != 0) ++end;
  if (end == dot + 1 || end >= layer.size() || layer[end] != '.') return {};
  return {layer.substr(0, dot), std::stoll(layer.substr(dot + 1, end - dot - 1)), layer.substr(end + 1)};
}

/// The repeated block with the most blocks, and their number.
std::pair<std::string, int64_t> longest_repetition(const JobSpec& spec) {
  std::map<std::string, std::set<int64_t>> numbers;
  for (const LayerSpec& layer : spec.network)
    if (const BlockName name = block_name(layer.name); name.number >= 0) numbers[name.block].insert(name.number);
  std::pair<std::string, int64_t> longest{"", 0};
  for (const auto& [block, found] : numbers)
    if (static_cast<int64_t>(found.size()) > longest.second) longest = {block, static_cast<int64_t>(found.size())};
  return longest;
}

/// The blocks that stay: the first and the last, those that a rule of stages needs, and enough for all stages.
std::set<int64_t> kept_blocks(const JobSpec& spec, const std::string& block) {
  std::set<int64_t> all;
  for (const LayerSpec& layer : spec.network)
    if (const BlockName name = block_name(layer.name); name.number >= 0 && name.block == block) all.insert(name.number);
  std::set<int64_t> kept = {*all.begin(), *all.rbegin()};
  for (const StageRule& rule : spec.parallel.stage_config)
    for (const LayerSpec& layer : spec.network) {
      const BlockName name = block_name(layer.name);
      if (name.number < 0 || name.block != block || !glob_match(rule.pattern, layer.name)) continue;
      kept.insert(name.number);
      break;
    }
  const size_t least = std::min(all.size(), static_cast<size_t>(2 * spec.parallel.stages * spec.parallel.chunks));
  for (auto number = all.begin(); kept.size() < least; ++number) kept.insert(*number);
  return kept;
}

template <typename Rules, typename Pattern>
void drop_unused(Rules& rules, const JobSpec& spec, Pattern pattern) {
  std::erase_if(rules, [&](const auto& rule) {
    std::string_view text = pattern(rule);
    if (text.starts_with('!')) text.remove_prefix(1);
    const auto matches = [&](const LayerSpec& layer) { return glob_match(text, layer.name); };
    return std::find_if(spec.network.begin(), spec.network.end(), matches) == spec.network.end() && text != "loss";
  });
}

/// Removes blocks from the longest repetition of equal blocks; keeps those that strategies, stages or recompute name.
Reduction drop_blocks(const JobSpec& spec) {
  const auto [block, count] = longest_repetition(spec);
  if (count <= 2) return {};
  const std::set<int64_t> kept = kept_blocks(spec, block);
  if (static_cast<int64_t>(kept.size()) == count) return {};
  JobSpec smaller = spec;
  const auto is_dropped = [&](const std::string& layer) {
    const BlockName name = block_name(layer);
    return name.number >= 0 && name.block == block && !kept.contains(name.number);
  };
  std::erase_if(smaller.network, [&](const LayerSpec& layer) { return is_dropped(layer.name); });
  // A block that read from a dropped one reads from the kept one before that.
  for (LayerSpec& layer : smaller.network)
    for (std::string& input : layer.inputs)
      if (is_dropped(input)) {
        const BlockName name = block_name(input);
        const int64_t before = *std::prev(kept.lower_bound(name.number));
        input = fmt::format("{}.{}.{}", block, before, name.rest);
      }
  drop_unused(
      smaller.parallel.strategies, smaller, [](const StrategySpec& rule) -> auto& { return rule.pattern; });
  drop_unused(
      smaller.parallel.recompute, smaller, [](const RecomputeRule& rule) -> auto& { return rule.pattern; });
  drop_unused(
      smaller.parallel.stage_config, smaller, [](const StageRule& rule) -> auto& { return rule.pattern; });
  if (smaller.adapters.lora)
    drop_unused(
        smaller.adapters.lora->layers, smaller, [](const std::string& rule) -> auto& { return rule; });
  return {{std::move(smaller), fmt::format("{} blocks {} to {}", count, block, kept.size())}};
}

/// Classes of data that are not generated stay, as do the layers that have one feature per class.
Reduction halve_widths(const JobSpec& spec) {
  JobSpec smaller = spec;
  const bool is_generated = spec.dataset.type == "random";
  std::set<int64_t> fixed;
  if (!is_generated) {
    for (const LayerSpec& layer : spec.network)
      if (layer.attrs.has("vocab")) fixed.insert(layer.attrs.integer("vocab"));
    if (!spec.network.empty() && spec.network.back().attrs.has("units"))
      fixed.insert(spec.network.back().attrs.integer("units"));
  }
  int64_t least = 0;
  for (LayerSpec& layer : smaller.network)
    for (const std::string_view field : kWidths) {
      if (!layer.attrs.has(field)) continue;
      const int64_t width = layer.attrs.integer(field);
      if (width < kLeastWidth || width % 2 != 0 || fixed.contains(width)) continue;
      layer.attrs.set(field, width / 2);
      least = least == 0 ? width : std::min(least, width);
    }
  if (least == 0) return {};
  if (is_generated && spec.dataset.classes >= kLeastWidth) smaller.dataset.classes = spec.dataset.classes / 2;
  return {{std::move(smaller), "widths"}};
}

Reduction halve_images(const JobSpec& spec) {
  JobSpec smaller = spec;
  Ints& shape = smaller.dataset.shape;
  if (spec.dataset.type != "random" || shape.size() != 3) return {};
  bool is_smaller = false;
  for (int64_t& dim : shape)
    if (dim % 2 == 0 && dim / 2 >= kLeastImage) {
      dim /= 2;
      is_smaller = true;
    }
  if (!is_smaller) return {};
  return {{std::move(smaller), "images"}};
}

/// "batch 256 to 16", for what a kind of reduction has done in all its steps.
std::string change_text(const std::string& kind, const JobSpec& before, const JobSpec& after, int times) {
  const auto length = [](const JobSpec& spec) {
    return spec.dataset.length > 0 ? spec.dataset.length : spec.dataset.shape.empty() ? 0 : spec.dataset.shape[0];
  };
  if (kind == "batch") return fmt::format("batch {} to {}", before.dataset.batch, after.dataset.batch);
  if (kind == "sequence length") return fmt::format("sequence length {} to {}", length(before), length(after));
  if (kind == "images")
    return fmt::format("images {} to {}", format_list(before.dataset.shape), format_list(after.dataset.shape));
  if (kind == "widths") return fmt::format("widths divided by {}", 1 << times);
  return kind;
}

/// Nothing if the job cannot be planned.
std::optional<PlannedJob> try_plan(const JobSpec& spec) {
  try {
    return plan_job(spec);
  } catch (const SpecError&) {
    return std::nullopt;
  }
}

/// Optimizers that divide by the size of a gradient turn rounding errors into steps of full size, and hide a
/// gradient that has the wrong scale. A large `eps` prevents both.
void raise_eps(OptimizerSpec& optimizer) {
  const OptimizerDef* def = find_optimizer(optimizer.type);
  const auto is_eps = [](const Field& field) { return std::string_view(field.name) == "eps"; };
  if (def == nullptr || std::none_of(def->fields.begin(), def->fields.end(), is_eps)) return;
  optimizer.attrs.set("eps", kVerifiedEps);
  for (ParameterGroup& group : optimizer.groups) group.attrs.erase("eps");
}

}  // namespace

double step_work(const PlannedJob& job) {
  double parameters = 0;
  for (const Update& update : job.graph.updates)
    parameters += static_cast<double>(num_elements(job.graph.tensors[static_cast<size_t>(update.parameter)].shape));
  return model_flops(job.graph, job.plan) + attention_flops(job.graph, job.plan) +
         kOperationsPerUpdate * parameters * job.spec.launch.ranks;
}

JobSpec verified_spec(JobSpec spec, int64_t steps) {
  spec.train.epochs = 0;
  spec.train.steps = steps;
  spec.train.log_every = spec.train.sink_steps = 1;
  spec.train.histograms = spec.train.fingerprints = spec.train.audit_every = 0;
  spec.train.checkpoint.reset();
  spec.train.stop_when.reset();
  spec.train.on_nan = OnNan::stop;
  if (spec.train.frozen_type != FrozenType::bf16) spec.train.frozen_type = FrozenType::same;
  spec.validation.reset();
  spec.print = {};
  spec.weights.reset();
  if (spec.adapters.lora) spec.adapters.lora->from.clear();
  spec.precision = spec.gradient_precision = Precision::fp32;
  spec.fp16.reset();
  spec.fp8.reset();
  spec.launch.device = Device::cpu;
  spec.optimizer.learning_rate = {
      .type = "exponential", .base = spec.optimizer.learning_rate.base, .gamma = kVerifiedDecay, .decay_steps = 1};
  raise_eps(spec.optimizer);
  return spec;
}

ReducedJob reduce_job(const JobSpec& spec, double most_work) {
  ReducedJob reduced{plan_job(spec), {}};
  const std::vector<std::function<Reduction(const JobSpec&)>> kinds = {halve_batch,  drop_blocks,  halve_length,
                                                                       halve_images, halve_widths, halve_last_rows};
  std::map<std::string, int> times;
  std::vector<std::string> order;
  const JobSpec first = reduced.job.spec;
  for (const auto& reduce : kinds) {
    while (step_work(reduced.job) > most_work) {
      Reduction smaller = reduce(reduced.job.spec);
      if (!smaller) break;
      std::optional<PlannedJob> planned = try_plan(smaller->first);
      if (!planned) break;
      reduced.job = std::move(*planned);
      if (times[smaller->second]++ == 0) order.push_back(smaller->second);
    }
  }
  for (const std::string& kind : order)
    reduced.changes.push_back(change_text(kind, first, reduced.job.spec, times[kind]));
  return reduced;
}

}  // namespace trainctl
