// Rules about train, loss, optimizer and precision.
#include <cstdint>
#include <string>

#include "engine/spec/fields.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

void bf16_gradients_need_bf16_weights(RuleContext& r) {
  if (!r.fine({"precision", "gradient_precision"}) || r.job.gradient_precision != Precision::bf16) return;
  if (r.job.precision == Precision::bf16) return;
  r.wrong("gradient_precision",
          "bf16 gradients require precision: bf16, but precision is " + std::string(to_string(r.job.precision)),
          "set precision: bf16, or remove gradient_precision");
}

void audits_replay_steps(RuleContext& r) {
  if (!r.fine({"train.audit_every", "parallel.mode"}) || r.job.train.audit_every == 0) return;
  if (r.job.servers() > 0)
    r.wrong("train.audit_every", "audits replay steps of ranks, and parameter servers run outside of steps",
            "set audit_every: 0, or another parallel.mode");
}

/// Fields that say when the state is saved contradict a job that does not save it.
void saves_are_consistent(RuleContext& r) {
  if (!r.fine({"train.checkpoint"}) || !r.job.train.checkpoint || r.job.train.saves_state()) return;
  const CheckpointSpec& saves = *r.job.train.checkpoint;
  const auto contradicts = [&](bool is_set, const char* field) {
    if (is_set)
      r.wrong(std::string("train.checkpoint.") + field,
              saves.every == "none" ? "`every: none` saves nothing" : "`every: weights` saves once, when the run ends",
              "remove either `every` or this field");
  };
  contradicts(saves.every_steps != 0, "every_steps");
  contradicts(saves.every_epochs != 0, "every_epochs");
  contradicts(saves.every_minutes != 0, "every_minutes");
  contradicts(!saves.keep_best.empty(), "keep_best");
}

void gradients_are_clipped_in_one_way(RuleContext& r) {
  if (r.fine({"optimizer"}) && r.job.optimizer.clip_norm > 0 && r.job.optimizer.clip_value > 0)
    r.wrong("optimizer.clip_value", "gradients are clipped by norm already (clip_norm)", "remove one of the two");
  if (r.fine({"optimizer"}) && r.job.optimizer.clip_parameter_norm > 0 &&
      (r.job.optimizer.clip_norm > 0 || r.job.optimizer.clip_value > 0))
    r.wrong("optimizer.clip_parameter_norm", "gradients are clipped already (clip_norm or clip_value)",
            "remove one of the two");
}

void weight_averages_suit_the_mode(RuleContext& r) {
  if (!r.fine({"optimizer", "parallel.mode"})) return;
  const EntryType* type = find_type(optimizer_types(), r.job.optimizer.type);
  if (type == nullptr) return;
  if (type->averages && r.job.optimizer.average)
    r.wrong("optimizer.average", type->name + " averages the weights itself", "remove it");
}

/// Reports sharded parameters if the optimizer, or clipping by parameter, needs the whole parameter on one rank.
void whole_parameters_are_not_sharded(RuleContext& r) {
  if (!r.fine({"optimizer", "parallel", "gradient_precision"})) return;
  const EntryType* type = find_type(optimizer_types(), r.job.optimizer.type);
  const bool clips = r.job.optimizer.clip_parameter_norm > 0;
  if (type == nullptr || (!clips && !type->needs_whole_parameters && !type->sums_over_parameters)) return;
  const std::string field = clips ? "optimizer.clip_parameter_norm" : "optimizer.type";
  const std::string what = clips ? "clip_parameter_norm" : type->name;
  const ParallelSpec& parallel = r.job.parallel;
  if (parallel.mode == ParallelMode::parameter_server) return;  // optimizer_fits_servers
  if (parallel.mode == ParallelMode::hybrid_parallel)
    return r.wrong(field, what + " needs whole parameters, which hybrid_parallel does not keep on a rank",
                   "use another parallel.mode, e.g. data_parallel");
  if (!clips && type->sums_over_parameters) return;
  if (parallel.optimizer_shard.level > 2)
    r.wrong(field, what + " needs whole parameters, but optimizer_shard.level 3 keeps only parts of them",
            "set parallel.optimizer_shard.level: 2");
  if (clips && r.job.gradient_precision == Precision::bf16)
    r.wrong(field, "clip_parameter_norm needs gradients in fp32", "remove gradient_precision: bf16");
}

void summed_losses_count_all_labels(RuleContext& r) {
  if (r.fine({"loss"}) && r.job.loss && r.job.loss->reduction == "sum" && r.job.loss->attrs.has("ignore_index"))
    r.wrong("loss.reduction", "a sum does not support ignore_index, whose mean is over the labels that count",
            "remove ignore_index, or set reduction: mean");
}

void skipped_steps_suit_the_mode(RuleContext& r) {
  if (!r.fine({"train.on_nan", "train.on_spike", "precision", "parallel.mode", "metrics"})) return;
  const bool spikes = r.job.train.on_spike.has_value(), scales = r.job.precision == Precision::fp16 && r.job.loss;
  if (!spikes && !scales && r.job.train.on_nan != OnNan::skip) return;
  const std::string field = spikes ? "train.on_spike" : scales ? "precision" : "train.on_nan";
  if (r.job.parallel.mode == ParallelMode::parameter_server)
    r.wrong(field,
            scales && !spikes
                ? "fp16 skips steps whose gradients are not finite, and parameter servers cannot skip a step"
                : "parameter servers cannot skip a step",
            spikes   ? "remove it"
            : scales ? "set precision: fp32, or parallel.mode: data_parallel"
                     : "set train.on_nan: stop or warn");
  const size_t own = spikes && scales ? 2 : 1, others = r.job.metrics.size() + r.job.auxiliary_losses.size();
  if (others + own > kMaxMetrics)
    r.wrong(field,
            std::string(own == 1 ? "skipped steps count in a metric of their own"
                                 : "skipped steps and overflows count in metrics of their own") +
                ", and there are " + std::to_string(others) + " of at most " + number(kMaxMetrics) + " already",
            "remove a metric" + std::string(r.job.auxiliary_losses.empty() ? "" : " or an auxiliary loss"));
}

void fp8_recipe_suits_the_job(RuleContext& r) {
  if (!r.job.fp8 || !r.fine({"fp8", "parallel.mode", "parallel.local_steps"})) return;
  const Fp8Spec &fp8 = *r.job.fp8, defaults;
  const bool delayed = fp8.recipe == Fp8Recipe::delayed;
  const std::string recipe(to_string(fp8.recipe)), mode(to_string(r.job.parallel.mode));
  const auto only_delayed = [&](bool is_set, const std::string& field) {
    if (is_set && !delayed)
      r.wrong("fp8." + field, "belongs to recipe: delayed, but the recipe is " + recipe,
              "set fp8.recipe: delayed, or remove it");
  };
  only_delayed(fp8.amax_history_len != defaults.amax_history_len, "amax_history_len");
  only_delayed(fp8.amax_compute_algo != defaults.amax_compute_algo, "amax_compute_algo");
  only_delayed(fp8.margin != defaults.margin, "margin");
  if (fp8.recipe == Fp8Recipe::block) return;
  const bool servers = r.job.parallel.mode == ParallelMode::parameter_server;
  if (r.job.parallel.mode == ParallelMode::hybrid_parallel || servers)
    r.wrong(
        "fp8.recipe",
        recipe +
            " needs the largest magnitude of a tensor on all ranks, which is not supported in parallel.mode: " + mode,
        "set fp8.recipe: block, or another parallel.mode");
  else if (delayed && r.job.parallel.local_steps > 0)
    r.wrong("fp8.recipe", "delayed scales are not supported with parallel.local_steps",
            "set fp8.recipe: tensor or block, or remove parallel.local_steps");
}

/// Errors that only a layer or optimizer type itself can detect: an invalid permutation, a field that needs another.
void fields_of_types_agree(RuleContext& r) {
  const auto ask = [&](const EntryType& type, const Attrs& attrs, const std::string& path, const std::string& use) {
    if (type.faults == nullptr || r.problems.touch(path)) return;
    for (const FieldFault& fault : type.faults(attrs)) {
      const std::string separator = fault.hint.empty() || use.empty() ? "" : "; ";
      r.wrong(path + "." + fault.field, fault.message, fault.hint + separator + use);
    }
  };
  for (const LayerSpec& layer : r.job.network) ask(*find_layer_type(layer.type), layer.attrs, layer.path, layer.use);
  const OptimizerSpec& optimizer = r.job.optimizer;
  const EntryType* type = find_type(optimizer_types(), optimizer.type);
  if (type == nullptr) return;
  ask(*type, optimizer.attrs, "optimizer", "");
  for (size_t g = 0; g < optimizer.groups.size(); ++g)
    ask(*type, optimizer.settings_of(static_cast<int>(g)), optimizer.groups[g].path, "");
}

}  // namespace trainctl::rules
