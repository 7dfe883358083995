// The fields of train, with train.on_spike, train.checkpoint and train.stop_when. Defaults are the initializers of
// job_spec.h.
#include <cstdlib>
#include <string_view>

#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/section_fields.h"

namespace trainctl {
namespace {

Field reaches_field() {
  Field f = make_field("reaches", FieldKind::number,
                       "Stop when the metric reaches this value: loss at or below it, "
                       "any other metric at or above it.");
  f.set = [](void* object, const Value& value) {
    const auto* whole = std::get_if<int64_t>(&value);
    static_cast<StopSpec*>(object)->reaches = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(value);
  };
  f.get = [](const void* object) -> Value {
    const auto& reaches = static_cast<const StopSpec*>(object)->reaches;
    return reaches ? Value(*reaches) : Value(std::string());
  };
  return f;
}

/// "10x": a multiple of the usual norm.
Field spike_norm_field() {
  Field f = make_field("norm", FieldKind::text,
                       "Maximum gradient norm of a step, as a multiple of the usual norm, e.g. 10x.");
  f.set = [](void* object, const Value& value) {
    const std::string& text = std::get<std::string>(value);
    char* end = nullptr;
    const double multiple = std::strtod(text.c_str(), &end);
    const bool is_whole = end != text.c_str() && (*end == 0 || std::string_view(end) == "x");
    static_cast<SpikeSpec*>(object)->norm = is_whole ? multiple : 0;  // validate refuses 0
  };
  f.get = [](const void* object) -> Value {
    return to_string(Value(static_cast<const SpikeSpec*>(object)->norm)) + "x";
  };
  return f;
}

const Section& spike_section() {
  using S = SpikeSpec;
  static const Section section{
      "train.on_spike",
      "Handling of gradient spikes. A step whose gradients are much larger than usual changes nothing, and neither "
      "does a step with non-finite gradients. Both count in the metric `skipped`.",
      {
          spike_norm_field(),
          field<&S::usual>("usual",
                           "Whether the usual norm is the median or the mean of the norms of the most recent steps "
                           "that were not skipped.")
              .one_of({"median", "mean"}),
          field<&S::window>("window", "Number of steps over which the usual norm is computed.")
              .at_least(1)
              .at_most(1024),
          field<&S::least>("least", "Number of norms to collect before any step is checked.").at_least(1),
          field<&S::then>("then",
                          "Response to a spike. skip: the step changes nothing. rollback: in addition, weights and "
                          "optimizer states return to the last checkpoint that was saved by every_steps, and the steps "
                          "since then have no effect.")
              .one_of({"skip", "rollback"}),
      }};
  return section;
}

Field spike_field() {
  Field f =
      make_field("on_spike", FieldKind::section,
                 "Skips steps whose gradients are much larger than usual. A bare value, such as 10x, is the norm.");
  f.section = &spike_section();
  f.stands_for = "norm";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& spike = static_cast<TrainSpec*>(enclosing)->on_spike;
    if (make && !spike) spike.emplace();
    return spike ? &*spike : nullptr;
  };
  return f;
}

const Section& stop_section() {
  using S = StopSpec;
  static const Section section{
      "train.stop_when",
      "Early stopping: ends the run after a validation that meets a condition.",
      {
          field<&S::metric>("metric", "Metric to monitor: loss, or a metric that validation reports.").required(),
          reaches_field(),
          unless_zero<&S::patience>("patience", "Stop after this many consecutive validations without an improvement.")
              .at_least(1),
      }};
  return section;
}

Field stop_field() {
  Field f = make_field("stop_when", FieldKind::section,
                       "Early stopping: ends the run after a validation that meets "
                       "a condition.");
  f.section = &stop_section();
  f.object = [](void* enclosing, bool make) -> void* {
    auto& stop = static_cast<TrainSpec*>(enclosing)->stop_when;
    if (make && !stop) stop.emplace();
    return stop ? &*stop : nullptr;
  };
  return f;
}

const Section& checkpoint_section() {
  using C = CheckpointSpec;
  static const Section section{
      "train.checkpoint",
      "Contents and frequency of checkpoints. A save always follows the last step and a request to stop. If several "
      "`every_*` fields are set, they act independently.",
      {
          unless_zero<&C::every_steps>("every_steps", "Number of steps between saves.").at_least(1),
          unless_zero<&C::every_epochs>("every_epochs", "Number of epochs between saves.").at_least(1),
          field<&C::every_minutes>("every_minutes", "Number of minutes between saves. 0: saves are not time-based.")
              .at_least(0),
          field<&C::every>("every",
                           "Contents of a save. auto: the complete state; if no every_* field is set, the interval is "
                           "computed from the cost of a save and the failure rate of the run (Young's formula). "
                           "weights: only the weights, when the run ends. none: nothing is saved.")
              .one_of({"auto", "weights", "none"}),
          field<&C::dir>(
              "dir", "Checkpoint folder; do not share it between jobs. If empty, `checkpoints` in the run's folder."),
          field<&C::keep>("keep", "Number of most recent checkpoints to keep.").at_least(1),
          field<&C::keep_best>("keep_best",
                               "Metric (loss, or a metric that validation reports) for which the checkpoint with the "
                               "best value is also kept."),
          field<&C::async>("async",
                           "Whether training continues while a checkpoint is being written. false: training waits "
                           "until the checkpoint is on disk."),
          field<&C::integrated>(
              "integrated", "Also write a single file with the full tensors, model.safetensors, to each checkpoint."),
      }};
  return section;
}

Field checkpoint_field() {
  Field f = make_field("checkpoint", FieldKind::section,
                       "Contents and frequency of checkpoints. auto saves the complete state so that `run --resume` "
                       "can continue the run; none saves nothing. If omitted, only the final weights are saved.");
  f.section = &checkpoint_section();
  f.stands_for = "every";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& checkpoint = static_cast<TrainSpec*>(enclosing)->checkpoint;
    if (make && !checkpoint) checkpoint.emplace();
    return checkpoint ? &*checkpoint : nullptr;
  };
  return f;
}

}  // namespace

const Section& train_section() {
  using T = TrainSpec;
  static const Section section{
      "train",
      "Training length (at most 2^32 - 1 steps), reports, checkpoints, and early stopping.",
      {
          unless_zero<&T::epochs>(
              "epochs",
              "Number of passes through the data set. If omitted and `steps` is set, the job runs the number of epochs "
              "that these steps require. If both are set, the run ends when the first of them is reached.")
              .at_least(1),
          field<&T::steps>("steps", "Number of steps after which training stops. 0: training stops after all epochs.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::log_every>("log_every", "Number of steps between printed loss lines.").at_least(1),
          field<&T::sink_steps>(
              "sink_steps",
              "Number of steps between reads of the losses from the device. The loss of every step is still reported, "
              "but N steps at a time, so the host synchronizes with the device less often.")
              .at_least(1)
              .at_most(1'000'000),
          field<&T::histograms>("histograms",
                                "Number of steps between histograms of each weight and its gradient for TensorBoard. "
                                "0: no histograms. A step with histograms waits until its values have been counted.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::fingerprints>(
              "fingerprints",
              "Number of steps between fingerprints of weights, gradients and optimizer states for `trainctl diff`. 0: "
              "no fingerprints. A step with fingerprints waits until its values have been read.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::audit_every>(
              "audit_every",
              "Number of steps between audits, in which each rank replays its last step on another core or GPU of its "
              "host and compares the results bit by bit. 0: no audits. See verify.md.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::on_nan>(
              "on_nan",
              "Response to a NaN or infinite loss. stop: the run ends with exit code 5. warn: one warning is printed "
              "and the run continues. skip: the run continues, and a step whose gradients contain NaN or infinity "
              "changes neither weights nor optimizer states and counts in the metric `skipped`."),
          spike_field(),
          list_field<&T::freeze>(
              "freeze", FieldKind::any_names,
              "Parameters that are not trained, by name or glob (`['*']`, `['h.*', 'table.weight']`). They have no "
              "gradients and no optimizer state, and are not reduced."),
          field<&T::frozen_type>(
              "frozen_type",
              "Storage type of the weights of frozen dense layers, except for the last layer. nf4 and int8: blocks of "
              "64 elements of a row are stored with their largest magnitude, which takes 4.5 and 8.5 bits per element; "
              "bf16: 16 bits per element; same: the type that kernels read. Weights are unpacked for each use. nf4 and "
              "int8 require `adapters` and `weights`.")
              .of(JobKind::network),
          checkpoint_field(),
          stop_field(),
      }};
  return section;
}

}  // namespace trainctl
