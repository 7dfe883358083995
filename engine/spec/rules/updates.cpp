// Rules about what an update is made of: the learning rate, spikes of the gradients, the type of the optimizer's
// states.
#include <cstdint>
#include <string>

#include "engine/base/entry_types.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {
namespace {

/// Checks a learning-rate schedule or one of its segments. `steps` is the length of the segment; 0: it lasts to the end
/// of the run.
void schedule_fits(RuleContext& r, const ScheduleSpec& s, const std::string& path, int64_t steps) {
  const auto need_ascending = [&](const char* field, const Ints& at) {
    for (size_t i = 1; i < at.size(); ++i)
      if (at[i] <= at[i - 1])
        return r.wrong(path + "." + field, "steps must ascend, but " + number(at[i]) + " follows " + number(at[i - 1]));
  };
  need_ascending("milestones", s.milestones);
  need_ascending("points", s.points);
  if (s.type == "piecewise" && (s.points.empty() || s.points.size() != s.rates.size()))
    r.wrong(path + ".rates",
            "there are " + number(static_cast<int64_t>(s.rates.size())) + " rates for " +
                number(static_cast<int64_t>(s.points.size())) + " points",
            "e.g. points: [0, 100, 1000], rates: [0, 0.1, 0.001]");
  const bool has_min = s.type == "cosine_restarts" || s.is_plateau();
  const int64_t total = s.total_steps > 0 || s.end(1) == 0 ? s.total_steps : steps;
  if (total == 0 && s.end(1) == 0 && !has_min) return;
  const std::string length = s.total_steps > 0 ? "total_steps: " + number(total) : number(total) + " steps";
  if (s.type == "wsd" && total > 0 && s.warmup_steps + s.decay_steps > total)
    r.wrong(path + ".decay_steps", "the warm-up of " + number(s.warmup_steps) + " and the decay of " +
                                       number(s.decay_steps) + " steps are longer than " + length);
  if (total > 0 && s.warmup_steps >= total)
    r.wrong(path + ".warmup_steps",
            "the warm-up of " + number(s.warmup_steps) + " steps is not shorter than " + length);
  const bool may_rise = s.type == "linear" && !s.path.empty();  // a segment before another one
  if (s.min > s.base && !may_rise)
    r.wrong(path + ".min", "min " + to_string(Value(s.min)) + " is greater than base " + to_string(Value(s.base)));
}

}  // namespace

void learning_rate_schedule_is_consistent(RuleContext& r) {
  const ScheduleSpec& s = r.job.optimizer.learning_rate;
  if (!r.fine({"optimizer"})) return;
  if (s.type != "segments") return schedule_fits(r, s, "optimizer.learning_rate", 0);
  for (size_t i = 0; i < s.segments.size(); ++i) {
    const ScheduleSpec& segment = s.segments[i];
    if (segment.steps == 0 && i + 1 < s.segments.size())
      r.wrong(segment.path + ".steps", "only the last segment may last to the end of the run", "set its steps");
    schedule_fits(r, segment, segment.path, segment.steps);
  }
}

/// Checks that a job with the schedule plateau has a validation, on whose results the rate depends.
void plateau_follows_a_validation(RuleContext& r) {
  const ScheduleSpec& s = r.job.optimizer.learning_rate;
  if (!r.fine({"optimizer", "validation", "metrics", "parallel.mode"}) || !s.is_plateau()) return;
  if (!r.job.validation)
    return r.wrong("optimizer.learning_rate.metric", "there is no validation to report '" + s.metric + "'",
                   "add validation: {dataset: ...}, or choose another type");
  metric_is_known(r, "optimizer.learning_rate.metric", s.metric, true);
  const EntryType* type = find_type(optimizer_types(), r.job.optimizer.type);
  if (type != nullptr && type->averages)
    r.wrong(
        "optimizer.learning_rate.type",
        type->name + " weights its average by the rates of all steps, which here do not follow from the step number",
        "choose another optimizer or schedule");
  if (r.job.parallel.mode == ParallelMode::parameter_server)
    r.wrong("optimizer.learning_rate.type", "parameter servers do not receive the results of validations",
            "use another parallel.mode, e.g. data_parallel");
}

void spike_limit_is_consistent(RuleContext& r) {
  if (!r.fine({"train"}) || !r.job.train.on_spike) return;
  const SpikeSpec& spike = *r.job.train.on_spike;
  if (!(spike.norm > 1))
    r.wrong("train.on_spike.norm", "must be a multiple above 1 of the usual norm", "e.g. norm: 10x");
  if (spike.least > spike.window)
    r.wrong("train.on_spike.least", "there are never more norms than the window of " + number(spike.window),
            "set least to at most " + number(spike.window));
  if (spike.then == "rollback" && r.job.train.saving().every_steps == 0)
    r.wrong("train.on_spike.then", "rollback returns to the last checkpoint by steps, but there is none",
            "set train.checkpoint.every_steps");
}

/// Checks that the optimizer and the mode support the type in which optimizer states are stored (optimizer.state_type).
void state_type_suits_the_optimizer(RuleContext& r) {
  if (!r.fine({"optimizer", "parallel.mode"}) || r.job.optimizer.state_type == StateType::fp32) return;
  const std::string chosen(to_string(r.job.optimizer.state_type));
  const EntryType* type = find_type(optimizer_types(), r.job.optimizer.type);
  if (type == nullptr) return;
  if (type->averages)
    r.wrong("optimizer.state_type", "the average that " + type->name + " keeps is exchanged with the weights in fp32",
            "remove state_type: " + chosen);
  if (type->sums_over_parameters)
    r.wrong("optimizer.state_type",
            "the states of " + type->name + " are sums over rows and columns, which stay in fp32",
            "remove state_type: " + chosen);
  if (r.job.parallel.mode == ParallelMode::parameter_server)
    r.wrong("optimizer.state_type", "parameter servers keep their states in fp32", "remove state_type: " + chosen);
}

}  // namespace trainctl::rules
