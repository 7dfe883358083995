// The fields of validation. Defaults are the initializers of job_spec.h.
#include "engine/spec/dataset_fields.h"
#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/section_fields.h"

namespace trainctl {
namespace {

const Section& generate_section() {
  using G = GenerateSpec;
  static const Section section{
      "validation.generate",
      "Text generation at each validation of a run: one text per prompt, with the current weights. See validation.md.",
      {
          field<&G::prompts>("prompts",
                             "File with one prompt per line, or a *.jsonl file with the field `prompt` or `messages`, "
                             "relative to the job file. With `type: chat` in `dataset`, each prompt is a user message.")
              .required(),
          field<&G::max_tokens>("max_tokens", "Maximum number of tokens to generate per prompt.")
              .at_least(1)
              .at_most(1 << 24),
          field<&G::temperature>("temperature",
                                 "Sampling temperature. 0: the most probable token is always chosen. Higher values "
                                 "make the texts more random.")
              .at_least(0),
          field<&G::seed>("seed",
                          "Random seed for sampling. The same seed and weights generate the same texts under any plan.")
              .at_least(0),
      }};
  return section;
}

Field generate_field() {
  Field f = make_field("generate", FieldKind::section,
                       "Text generation at each validation of a run: one text per prompt, with the current weights.");
  f.section = &generate_section();
  f.stands_for = "prompts";
  f.object = [](void* enclosing, bool make) -> void* {
    auto& generate = static_cast<ValidationSpec*>(enclosing)->generate;
    if (make && !generate) generate.emplace();
    return generate ? &*generate : nullptr;
  };
  return f;
}

const Section& validation_section() {
  using V = ValidationSpec;
  static const Section section{
      "validation",
      "Computes the loss and metrics on held-out samples with the current weights. The last step is always followed by "
      "a validation.",
      {
          subsection<&V::dataset>("dataset", validation_dataset_section(), "The held-out samples."),
          unless_zero<&V::every_epochs>("every_epochs",
                                        "Number of epochs between validations; if `every_steps` is also omitted, 1.")
              .at_least(1),
          unless_zero<&V::every_steps>("every_steps", "Number of steps between validations.").at_least(1),
          list_field<&V::metrics>(
              "metrics", FieldKind::any_names,
              "Metrics to report: loss, and names from the job's `metrics`; if omitted, all of them."),
          generate_field(),
      }};
  return section;
}

}  // namespace

Field validation_field() {
  Field f = make_field("validation", FieldKind::section,
                       "Evaluates the model on held-out samples, during the run and with `trainctl evaluate`.")
                .of(JobKind::network);
  f.section = &validation_section();
  f.object = [](void* enclosing, bool make) -> void* {
    auto& validation = static_cast<JobSpec*>(enclosing)->validation;
    if (make && !validation) validation.emplace();
    return validation ? &*validation : nullptr;
  };
  return f;
}

}  // namespace trainctl
