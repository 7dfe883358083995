// The field table of the whole job, and of the small sections. The larger sections have files of their own
// (section_fields.h). Defaults are the initializers of job_spec.h.
#include "engine/spec/section_fields.h"

#include "engine/spec/dataset_fields.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/update_fields.h"

namespace trainctl {
namespace {

const Section& weights_section() {
  using W = WeightsSpec;
  static const Section section{
      "weights",
      "Weights that a new run starts from. `run --resume` and `--resume-from` use the checkpoint's weights instead. "
      "See weights.md.",
      {
          field<&W::from>("from",
                          "Path, relative to the job file, of a model folder in Hugging Face format, a safetensors "
                          "file, or the index of several safetensors files. Each rank reads only its part.")
              .required(),
          field<&W::map>("map",
                         "Map of tensor names: auto (chosen by model_type in the config.json next to the weights), a "
                         "map listed by `trainctl checkpoint maps`, or a YAML file."),
          field<&W::partial>(
              "partial",
              "Load the tensors that fit the network and initialize all others, such as the weights of a new head."),
      }};
  return section;
}

Field weights_field() {
  Field f = make_field("weights", FieldKind::section, "Weights that a new run starts from.").of(JobKind::network);
  f.section = &weights_section();
  f.stands_for = "from";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& weights = static_cast<JobSpec*>(enclosing)->weights;
    if (make && !weights) weights.emplace();
    return weights ? &*weights : nullptr;
  };
  return f;
}

Field loss_field() {
  Field f = make_field("loss", FieldKind::section, "The loss function: a name or a mapping.").of(JobKind::network);
  f.section = &loss_section();
  f.stands_for = "type";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& loss = static_cast<JobSpec*>(enclosing)->loss;
    if (make && !loss) loss.emplace();
    return loss ? &*loss : nullptr;
  };
  return f;
}

const Section& fp8_section() {
  using F = Fp8Spec;
  static const Section section{
      "fp8",
      "Which layers use 8-bit operands in their matrix products, and how the operands are scaled. All other layers use "
      "bf16.",
      {
          field<&F::recipe>(
              "recipe",
              "Scaling recipe of the operands. block: one scale per 128 elements of a row or column, and per 128 x 128 "
              "elements of a weight, as in DeepSeek-V3; all operands are E4M3. tensor: one scale per tensor, computed "
              "from its largest magnitude (current scaling); gradients are E5M2. delayed: one scale per tensor, "
              "computed from its largest magnitudes in earlier steps; gradients are E5M2."),
          field<&F::amax_history_len>("amax_history_len",
                                      "With recipe: delayed, the number of steps whose largest magnitudes are kept.")
              .at_least(1),
          field<&F::amax_compute_algo>("amax_compute_algo",
                                       "With recipe: delayed, whether the scale is computed from the largest of the "
                                       "kept magnitudes or from the most recent one."),
          field<&F::margin>("margin", "With recipe: delayed, the scale is divided by 2^margin.").at_least(0),
          list_field<&F::layers>("layers", FieldKind::any_names,
                                 "Layers with a weight, by name or glob; if omitted, all. Globs do not select the "
                                 "head, which is the layer that the loss reads. Give its full name to include it."),
          field<&F::min_weight>("min_weight",
                                "Minimum number of elements of a weight; layers with a smaller weight "
                                "use bf16.")
              .at_least(0),
      }};
  return section;
}

/// The field fp8, which only a job with precision: fp8 may have.
Field fp8_field() {
  Field f = make_field("fp8", FieldKind::section,
                       "With precision: fp8, which matrix products use 8-bit operands and how the operands are scaled.")
                .of(JobKind::network);
  f.section = &fp8_section();
  f.object = [](void* enclosing, bool) -> void* {
    auto& fp8 = static_cast<JobSpec*>(enclosing)->fp8;
    return fp8 ? &*fp8 : nullptr;
  };
  return f;
}

const Section& fp16_section() {
  using F = Fp16Spec;
  static const Section section{
      "fp16",
      "Dynamic loss scaling, as in torch.amp.GradScaler. The loss is multiplied by a scale so that small gradients are "
      "not rounded to 0, and updates divide the gradients by the scale. A step with non-finite gradients changes "
      "nothing, and the scale is reduced. After a number of consecutive steps with finite gradients, the scale grows.",
      {
          field<&F::initial_scale>("initial_scale", "Loss scale of the first step.").above(0),
          field<&F::growth_interval>("growth_interval",
                                     "Number of consecutive steps with finite gradients after which the scale grows.")
              .at_least(1),
          field<&F::growth_factor>("growth_factor", "Factor by which the scale grows. 1: the scale never grows.")
              .at_least(1),
          field<&F::backoff_factor>("backoff_factor",
                                    "Factor by which the scale is multiplied after a step with non-finite gradients.")
              .above(0)
              .below(1),
          field<&F::min_scale>("min_scale",
                               "Lower bound of the scale. With train.on_nan: stop, a step with non-finite gradients at "
                               "this scale ends the run.")
              .at_least(0),
      }};
  return section;
}

/// The field fp16, which only a job with precision: fp16 may have.
Field fp16_field() {
  Field f = make_field("fp16", FieldKind::section, "Dynamic loss scaling for precision: fp16.").of(JobKind::network);
  f.section = &fp16_section();
  f.object = [](void* enclosing, bool) -> void* {
    auto& fp16 = static_cast<JobSpec*>(enclosing)->fp16;
    return fp16 ? &*fp16 : nullptr;
  };
  return f;
}

/// The field precision. With fp8 the job computes in bf16, except for some products of 8-bit factors.
Field precision_field() {
  Field f = field<&JobSpec::precision>(
                "precision",
                "Numeric precision of the job. fp32: single precision. tf32: like fp32, but GPUs may round the "
                "operands of matrix products to tf32. bf16 (mixed precision): weights and activations are bf16; sums, "
                "statistics, parameter gradients and optimizer state are fp32. fp16: like bf16, but in half precision "
                "and with dynamic loss scaling (`fp16`). fp8: like bf16, but the layers selected by `fp8` multiply "
                "8-bit operands, whose scales follow a published recipe (`fp8.recipe`).")
                .of(JobKind::network);
  f.choices.emplace_back("fp8");
  f.set = [](void* object, const Value& value) {
    JobSpec& job = *static_cast<JobSpec*>(object);
    const auto& name = std::get<std::string>(value);
    const bool fp8 = name == "fp8";
    job.precision = fp8 ? Precision::bf16 : enum_value<Precision>(name);
    job.fp8.reset();
    job.fp16.reset();
    if (fp8) job.fp8.emplace();
    if (job.precision == Precision::fp16) job.fp16.emplace();
  };
  f.get = [](const void* object) -> Value {
    const JobSpec& job = *static_cast<const JobSpec*>(object);
    return std::string(job.fp8 ? "fp8" : to_string(job.precision));
  };
  return f;
}

const Section& print_section() {
  using P = PrintSpec;
  static const Section section{
      "print",
      "Layers whose output is printed.",
      {
          make_field("tensors", FieldKind::names, "Layers whose output is printed.").required(),
          field<&P::format>("format",
                            "Output format. text: each rank prints its local shard to its standard output. npy: the "
                            "ranks write the full tensor of the global batch to one file in the run's folder."),
          field<&P::every>("every", "Number of steps between prints; the first step is always printed.").at_least(1),
      }};
  return section;
}

Field print_field() {
  Field f = make_field("print", FieldKind::section, "Layers whose output is printed.").of(JobKind::network);
  f.section = &print_section();
  f.stands_for = "tensors";
  f.object = [](void* enclosing, bool make) -> void* {
    PrintSpec& print = static_cast<JobSpec*>(enclosing)->print;
    return make || !print.tensors.empty() ? &print : nullptr;
  };
  return f;
}

}  // namespace

const Section& job_section() {
  using J = JobSpec;
  // Fields are read in this order: modules before network, and network before the fields that name its layers.
  static const Section section{
      "",
      "The job file.",
      {
          make_field("vars", FieldKind::values,
                     "Named values, for use in expressions such as `${4*d}` in any value "
                     "below.")
              .of(JobKind::network),
          field<&J::name>("name", "Name of the job in output and logs."),
          field<&J::seed>("seed", "Random seed for initial weights, dropout and shuffling; at most 2^63 - 1.")
              .at_least(0),
          precision_field(),
          field<&J::gradient_precision>("gradient_precision",
                                        "Type in which parameter gradients are stored, sent and summed. bf16 halves "
                                        "their size and requires precision: bf16 or fp8.")
              .one_of({"fp32", "bf16"})
              .of(JobKind::network),
          make_field("command", FieldKind::words,
                     "Program and arguments that are started once per rank, in place of a network.")
              .of(JobKind::command),
          make_field("env", FieldKind::variables, "Variables added to each rank's environment."),
          field<&J::working_dir>(
              "working_dir",
              "Working directory of the command, relative to the job file. If omitted, the job file's folder.")
              .of(JobKind::command),
          list_field<&J::plugins>("plugins", FieldKind::paths,
                                  "Paths, relative to the job file, of shared libraries that define additional layer "
                                  "types. A path may end in #sha256=DIGITS, the digest of the file. See plugins.md.")
              .of(JobKind::network),
          weights_field(),
          subsection<&J::dataset>("dataset", dataset_section(), "The training samples.")
              .required()
              .of(JobKind::network),
          make_field("modules", FieldKind::modules, "Reusable blocks of layers that the network inserts by name.")
              .of(JobKind::network),
          make_field("network", FieldKind::layers, "The layers of the network, in order.")
              .required()
              .of(JobKind::network),
          fp8_field(),
          fp16_field(),
          subsection<&J::adapters>("adapters", adapters_section(),
                                   "Small trainable layers that are added to frozen layers.")
              .of(JobKind::network),
          loss_field(),
          make_field(
              "auxiliary_losses", FieldKind::losses,
              "Additional losses on other outputs or other labels. The sum of all losses is minimized and reported.")
              .of(JobKind::network),
          make_field("metrics", FieldKind::metrics,
                     "Metrics that are computed from the predictions of each step and reported with the loss.")
              .of(JobKind::network),
          validation_field(),
          subsection<&J::optimizer>("optimizer", optimizer_section(), "The optimizer: a name or a mapping.")
              .of(JobKind::network)
              .shorthand("type"),
          subsection<&J::train>("train", train_section(), "Training length, checkpoints, and early stopping.")
              .of(JobKind::network),
          subsection<&J::parallel>("parallel", parallel_section(), "How the network is distributed over ranks.")
              .of(JobKind::network),
          subsection<&J::launch>("launch", launch_section(), "Where the ranks run."),
          print_field(),
          make_field("track", FieldKind::trackers,
                     "Experiment trackers that receive the losses, metrics and validation results of a run during "
                     "training: tensorboard, mlflow, wandb or a command.")
              .of(JobKind::network),
      }};
  return section;
}

}  // namespace trainctl
