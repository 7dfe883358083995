// The sections of the job file that say what a step minimizes and how it updates the parameters.
#include "engine/spec/update_fields.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"

namespace trainctl {
namespace {

/// "dpo: Weight of the log-probabilities. Default: 0.1."
std::string meaning_in(const std::string& type, const Field& field) {
  return type + ": " + field.doc + (field.fallback ? " Default: " + to_string(*field.fallback) + "." : "");
}

/// "adam, adamw: Decay rates. Default: [0.9, 0.999]."; the doc itself if it already names the types.
std::string meanings_of(const Field& field) {
  const std::string& first = field.only[0];
  if (field.doc.starts_with(first + ": ") || field.doc.starts_with(first + ", ")) return field.doc;
  return meaning_in(join(field.only), field);
}

/// Adds to a field the meaning that the field of this name has in another type. The default is then that of the type.
void add_meaning(Field& field, const std::string& type, const Field& other) {
  check(field.kind == other.kind, "types that share a field must give it the same kind: " + field.name);
  if (field.doc == other.doc && field.fallback == other.fallback && kind_text(field) == kind_text(other)) return;
  field.doc = meanings_of(field) + " " + meaning_in(type, other);
  field.fallback.reset();
  field.min_open = field.min_open && (other.min_open || other.min > field.min);
  field.min = std::min(field.min, other.min);
  field.max_open = field.max_open && (other.max_open || other.max < field.max);
  field.max = std::max(field.max, other.max);
}

/// The fields that the types of a section define, each once, marked with the types that have it. `attrs` finds
/// their values.
std::vector<Field> fields_of(const std::vector<EntryType>& types, Attrs& (*attrs)(void* object)) {
  std::vector<Field> fields;
  for (const EntryType& type : types) {
    for (const Field& field : type.fields) {
      auto at = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == field.name; });
      if (at == fields.end()) {
        at = fields.insert(at, field);
        at->attrs = attrs;
      }
      add_meaning(*at, type.name, field);
      at->only.push_back(type.name);
    }
  }
  for (Field& field : fields) {
    if (field.only.size() == types.size()) field.only.clear();
  }
  return fields;
}

std::vector<Field> operator+(std::vector<Field> a, const std::vector<Field>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// "mae: mean |p - l|; mse: ...".
std::string meanings(const std::vector<EntryType>& types) {
  std::vector<std::string> all;
  for (const EntryType& type : types) all.push_back(type.name + ": " + type.doc);
  return join(all, "; ");
}

const std::vector<Field>& schedule_fields() {
  using S = ScheduleSpec;
  static const std::vector<Field> fields{
      field<&S::type>(
          "type",
          "Type of schedule. constant: stays at base; step: multiplied by gamma every step_size steps; cosine: cosine "
          "decay from base to min; linear: linear decay from base to min; polynomial: decay from base to min with a "
          "power of the remaining steps; exponential: multiplied by gamma over decay_steps steps, continuously; "
          "multi_step: multiplied by gamma at each milestone; cosine_restarts: cosine decay that restarts after each "
          "period; inverse_sqrt: decays with the inverse square root of the step; wsd: stays at base, then decays to "
          "min over the last decay_steps steps; one_cycle: rises to base and falls again, like OneCycleLR in PyTorch; "
          "piecewise: linear interpolation between given rates; plateau: multiplied by factor when validations stop "
          "improving, like ReduceLROnPlateau in PyTorch; segments: several schedules in sequence, like SequentialLR in "
          "PyTorch.")
          .one_of({"constant", "step", "cosine", "linear", "polynomial", "exponential", "multi_step", "cosine_restarts",
                   "inverse_sqrt", "wsd", "one_cycle", "piecewise", "plateau", "segments"}),
      field<&S::base>("base",
                      "Learning rate after warm-up. With one_cycle, the maximum learning rate; with segments, the base "
                      "of segments that have none.")
          .above(0),
      field<&S::warmup_steps>("warmup_steps",
                              "Number of warm-up steps, over which the learning rate rises linearly from 0 to base.")
          .at_least(0)
          .for_type({"constant", "step", "cosine", "linear", "polynomial", "exponential", "multi_step",
                     "cosine_restarts", "inverse_sqrt", "wsd", "plateau"}),
      field<&S::total_steps>(
          "total_steps", "Number of steps until the learning rate reaches its final value. 0: all steps of the run.")
          .for_type({"cosine", "linear", "polynomial", "wsd", "one_cycle"})
          .at_least(0),
      field<&S::min>("min", "Final learning rate. With plateau, the lower bound of the learning rate.")
          .for_type({"cosine", "linear", "polynomial", "cosine_restarts", "wsd", "plateau"})
          .at_least(0),
      field<&S::step_size>("step_size", "Number of steps between decays.").for_type({"step"}).required().at_least(1),
      field<&S::gamma>("gamma", "Factor by which the learning rate is multiplied at each decay.")
          .for_type({"step", "exponential", "multi_step"})
          .above(0),
      field<&S::milestones>("milestones",
                            "Steps at which the learning rate is multiplied by gamma, in ascending order.")
          .for_type({"multi_step"})
          .required()
          .at_least(1),
      field<&S::power>("power", "Exponent of the decay: the power to which the fraction of remaining steps is raised.")
          .for_type({"polynomial"})
          .above(0),
      field<&S::decay_steps>(
          "decay_steps",
          "Number of steps over which the learning rate decays by a factor of gamma (exponential) or to min (wsd).")
          .for_type({"exponential", "wsd"})
          .required()
          .at_least(1),
      field<&S::decay_shape>("decay_shape", "Shape of the decay.")
          .one_of({"linear", "cosine", "sqrt"})
          .for_type({"wsd"}),
      field<&S::restart_steps>("restart_steps", "Length of the first period, in steps.")
          .for_type({"cosine_restarts"})
          .required()
          .at_least(1),
      field<&S::restart_factor>("restart_factor",
                                "Factor by which the length of the period is multiplied after each restart.")
          .for_type({"cosine_restarts"})
          .at_least(1),
      field<&S::pct_start>("pct_start", "Fraction of the steps during which the learning rate rises.")
          .for_type({"one_cycle"})
          .above(0)
          .below(1),
      field<&S::div_factor>("div_factor", "Ratio of base to the initial learning rate.")
          .for_type({"one_cycle"})
          .at_least(1),
      field<&S::final_div_factor>("final_div_factor", "Ratio of the initial learning rate to the final one.")
          .for_type({"one_cycle"})
          .at_least(1),
      field<&S::timescale>("timescale",
                           "Number of steps after warm-up until the learning rate has decayed to base divided by the "
                           "square root of 2. 0 (default): warmup_steps.")
          .for_type({"inverse_sqrt"})
          .at_least(0),
      field<&S::points>("points", "Steps at which `rates` are reached, in ascending order.")
          .for_type({"piecewise"})
          .required()
          .at_least(0),
      field<&S::rates>("rates",
                       "Learning rates at `points`. The learning rate is interpolated linearly between them, and is "
                       "constant before the first and after the last.")
          .for_type({"piecewise"})
          .required()
          .at_least(0),
      field<&S::metric>("metric", "Metric to monitor: loss, or a metric that validation reports.")
          .for_type({"plateau"}),
      field<&S::factor>("factor", "Factor by which the learning rate is multiplied at each reduction.")
          .for_type({"plateau"})
          .above(0)
          .below(1),
      field<&S::patience>("patience",
                          "Number of validations without an improvement before the learning rate is reduced.")
          .for_type({"plateau"})
          .at_least(0),
      field<&S::threshold>("threshold", "Smallest change that counts as an improvement.")
          .for_type({"plateau"})
          .at_least(0),
      field<&S::threshold_mode>("threshold_mode",
                                "Whether the threshold is relative to the best value (rel) or absolute (abs).")
          .one_of({"rel", "abs"})
          .for_type({"plateau"}),
      field<&S::cooldown>("cooldown", "Number of validations after a reduction that do not count towards patience.")
          .for_type({"plateau"})
          .at_least(0),
  };
  return fields;
}

const Section& learning_rate_section() {
  static const Section section{
      "optimizer.learning_rate", "The learning rate schedule. A bare number is short for {base: number}.",
      schedule_fields() +
          std::vector<Field>{
              make_field("segments", FieldKind::segments,
                         "Schedules that run in sequence. Each segment has a length, `steps`, and the fields of a "
                         "schedule, in which steps are counted from the start of the segment. The last segment may "
                         "omit `steps` and then lasts until the end of the run.")
                  .for_type({"segments"})
                  .required(),
          }};
  return section;
}

}  // namespace

namespace {

using L = LossSpec;

std::vector<Field> loss_fields(std::string type_doc) {
  return std::vector<Field>{
             field<&L::type>("type", std::move(type_doc)).one_of(names_of(loss_types())).required(),
             field<&L::input>("input", "Layer whose output is the prediction. If omitted, the last layer."),
             list_field<&L::inputs>(
                 "inputs", FieldKind::any_names,
                 "Layers whose outputs are compared, in place of input, for losses that compare several outputs."),
             field<&L::reduction>("reduction",
                                  "Whether the loss is the mean or the sum of all terms of the global batch. "
                                  "Validation always reports the mean.")
                 .one_of({"mean", "sum"}),
             field<&L::weight>("weight", "Weight of this loss in the sum of all losses.").above(0),
         } +
         fields_of(loss_types(), [](void* loss) -> Attrs& { return static_cast<L*>(loss)->attrs; });
}

}  // namespace

const Section& segment_section() {
  static const Section section = [] {
    Section one{"a segment", "One schedule in a sequence of schedules.", schedule_fields()};
    one.fields.front().choices.pop_back();  // segments
    one.fields.front().choices.pop_back();  // plateau
    std::erase_if(one.fields, [](const Field& f) { return f.only == std::vector<std::string>{"plateau"}; });
    one.fields.push_back(
        field<&ScheduleSpec::steps>("steps", "Length of the segment, in steps. 0: until the end of the run.")
            .at_least(0)
            .at_most(kMaxSteps));
    return one;
  }();
  return section;
}

const Section& loss_section() {
  static const Section section{
      "loss",
      "The loss to minimize. Without a loss, the job runs only the forward pass. A bare name is short for "
      "{type: name}.",
      loss_fields(meanings(loss_types()) + ".")};
  return section;
}

const Section& auxiliary_loss_section() {
  static const Section section{"auxiliary_losses",
                               "An additional loss on another output or another label, which is added to the loss.",
                               loss_fields("Same as for `loss`.") +
                                   std::vector<Field>{
                                       field<&L::name>("name",
                                                       "Name of the loss, which is reported without its weight as "
                                                       "loss.NAME. If omitted, the type of the loss."),
                                       field<&L::label>("label", "Sample field that contains the labels of this loss."),
                                   }};
  return section;
}

const Section& average_section() {
  using A = AverageSpec;
  static const Section section{
      "optimizer.average",
      "Average of the weights over the steps, which validation, evaluation, text generation and export use in place of "
      "the weights.",
      {
          field<&A::type>("type",
                          "Type of average. ema: exponential moving average, decay * average + (1 - decay) * weights; "
                          "swa: mean of the weights (stochastic weight averaging).")
              .one_of({"ema", "swa"}),
          field<&A::decay>("decay", "Decay rate: the weight of the previous average in each update.")
              .for_type({"ema"})
              .at_least(0)
              .below(1),
          field<&A::warmup>("warmup", "Limit the decay of the n-th average to at most (1 + n) / (10 + n).")
              .for_type({"ema"}),
          field<&A::start>("start",
                           "Number of steps before averaging begins; until then, the average is a copy of the weights.")
              .at_least(0),
          field<&A::every>("every", "Number of steps between updates of the average.").at_least(1),
      }};
  return section;
}

Field average_field() {
  Field f = make_field("average", FieldKind::section,
                       "A running average of the weights, used for validation, evaluation and export. Takes "
                       "4 bytes per parameter, sharded like the optimizer state.");
  f.section = &average_section();
  f.stands_for = "type";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& average = static_cast<OptimizerSpec*>(enclosing)->average;
    if (make && !average) average.emplace();
    return average ? &*average : nullptr;
  };
  return f;
}

const Section& optimizer_section() {
  using O = OptimizerSpec;
  static const Section section{
      "optimizer", "The optimizer, whose update rule is defined as in PyTorch.",
      std::vector<Field>{
          field<&O::type>("type", in_words(names_of(optimizer_types()), " or ") + ".")
              .one_of(names_of(optimizer_types())),
          subsection<&O::learning_rate>("learning_rate", learning_rate_section(),
                                        "The learning rate: a number or a "
                                        "schedule.")
              .shorthand("base"),
      } + fields_of(optimizer_types(), [](void* optimizer) -> Attrs& { return static_cast<O*>(optimizer)->attrs; }) +
          std::vector<Field>{
              field<&O::clip_norm>("clip_norm", "Maximum global norm of the gradients; 0: no clipping.").at_least(0),
              field<&O::clip_value>("clip_value",
                                    "Maximum absolute value of each element of the gradients; 0: no clipping.")
                  .at_least(0),
              field<&O::clip_parameter_norm>("clip_parameter_norm",
                                             "Maximum norm of the gradient of each parameter; 0: no clipping.")
                  .at_least(0),
              field<&O::state_type>(
                  "state_type",
                  "Storage type of the optimizer state. fp32: single precision. bf16: bfloat16 with stochastic "
                  "rounding. int8: blocks of 256 elements with their largest magnitude, as in the 8-bit optimizers of "
                  "bitsandbytes, for parameters of at least 4096 elements."),
              average_field(),
              make_field("groups", FieldKind::groups,
                         "Parameter groups with their own settings, which are fields of the optimizer and "
                         "learning_rate_scale. A parameter belongs to the first group with a matching pattern."),
          }};
  return section;
}

}  // namespace trainctl
