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
                       "The largest norm of a step's gradients, as a multiple of the usual one, e.g. 10x.");
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
      "A step whose gradients are much larger than usual changes nothing, like one whose gradients are not finite. "
      "Both count in the metric `skipped`.",
      {
          spike_norm_field(),
          field<&S::usual>("usual",
                           "The usual norm: the median or the mean of the norms of the last steps that were not "
                           "skipped.")
              .one_of({"median", "mean"}),
          field<&S::window>("window", "Number of steps over which the usual norm is computed.")
              .at_least(1)
              .at_most(1024),
          field<&S::least>("least", "Number of norms to collect before any step is checked.").at_least(1),
          field<&S::then>("then",
                          "skip: the step changes nothing; rollback: weights and optimizer states also return to the "
                          "last checkpoint by steps, and the steps since then have no effect.")
              .one_of({"skip", "rollback"}),
      }};
  return section;
}

Field spike_field() {
  Field f = make_field("on_spike", FieldKind::section,
                       "Skips a step whose gradients are much larger than usual. A bare value is the norm: 10x.");
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
          field<&S::metric>("metric", "loss, or a metric that validation reports.").required(),
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
      "What is saved and when. A save always follows the last step and a request to stop. Several `every_*` fields "
      "act independently.",
      {
          unless_zero<&C::every_steps>("every_steps", "Steps between saves.").at_least(1),
          unless_zero<&C::every_epochs>("every_epochs", "Epochs between saves.").at_least(1),
          field<&C::every_minutes>("every_minutes", "Minutes between saves; 0: not time-based.").at_least(0),
          field<&C::every>("every",
                           "auto: saves the whole state; without every_*, the interval follows from the cost of a "
                           "save and the failure rate of the run (Young's formula). weights: saves only the weights "
                           "when the run ends. none: saves nothing.")
              .one_of({"auto", "weights", "none"}),
          field<&C::dir>("dir",
                         "Folder for checkpoints; do not share it between jobs. Empty: `checkpoints` in the run's "
                         "folder."),
          field<&C::keep>("keep", "Number of most recent checkpoints to keep.").at_least(1),
          field<&C::keep_best>("keep_best",
                               "loss, or a metric of validation: the checkpoint with its best value is "
                               "kept too."),
          field<&C::async>("async",
                           "Training continues while a checkpoint is written; false: it waits until the "
                           "checkpoint is on disk."),
          field<&C::integrated>("integrated",
                                "Also write one file with the full tensors, model.safetensors, to each "
                                "checkpoint."),
      }};
  return section;
}

Field checkpoint_field() {
  Field f = make_field("checkpoint", FieldKind::section,
                       "auto saves the whole state so that `run --resume` can continue the run. If omitted, only the "
                       "final weights are saved; with none, nothing is saved.");
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
      "The length of the training, at most 2^32 - 1 steps, and what it reports and saves.",
      {
          unless_zero<&T::epochs>("epochs",
                                  "Passes through the data set. If omitted, a job with `steps` runs as many epochs "
                                  "as those steps need. If both are set, the run ends at whichever is reached first.")
              .at_least(1),
          field<&T::steps>("steps", "Stop after this number of steps; 0: stop after all epochs.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::log_every>("log_every", "Steps between printed loss lines.").at_least(1),
          field<&T::sink_steps>(
              "sink_steps",
              "Steps between reads of the losses from the device. Every step's loss is still reported, but N steps "
              "at a time, so the host synchronizes with the device less often.")
              .at_least(1)
              .at_most(1'000'000),
          field<&T::histograms>(
              "histograms",
              "Steps between histograms of each weight and its gradient for TensorBoard; 0: none. Such a step waits "
              "until its values have been counted.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::fingerprints>(
              "fingerprints",
              "Steps between fingerprints of weights, gradients and optimizer states, for `trainctl diff`; 0: none. "
              "Such a step waits until its values have been read.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::audit_every>("audit_every",
                                 "Steps between two audits, in which each rank replays its last step on another core "
                                 "or GPU of its host and compares bits; 0: none. See verify.md.")
              .at_least(0)
              .at_most(kMaxSteps),
          field<&T::on_nan>("on_nan",
                            "If the loss is NaN or infinite: stop ends the run with exit code 5; warn prints one "
                            "warning and continues; skip continues too, and a step whose gradients contain NaN or "
                            "infinity changes neither weights nor optimizer states and counts in the metric "
                            "`skipped`."),
          spike_field(),
          list_field<&T::freeze>(
              "freeze", FieldKind::any_names,
              "Parameters that are not trained, by name or glob (`['*']`, `['h.*', 'table.weight']`). "
              "They have no gradient, no optimizer state and no reduction."),
          field<&T::frozen_type>(
              "frozen_type",
              "Storage of the weights of frozen dense layers, except that of the last layer. nf4 and int8: blocks of "
              "64 "
              "elements of a row with their largest magnitude, 4.5 and 8.5 bits per element; bf16: 16 bits; same: the "
              "type that kernels read. They are unpacked for each use. nf4 and int8 need `adapters` and `weights`.")
              .of(JobKind::network),
          checkpoint_field(),
          stop_field(),
      }};
  return section;
}

}  // namespace trainctl
