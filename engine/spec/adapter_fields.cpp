// The fields of adapters. Defaults are the initializers of job_spec.h.
#include "engine/spec/field_makers.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/section_fields.h"

namespace trainctl {
namespace {

const Section& lora_section() {
  using L = LoraSpec;
  static const Section section{
      "adapters.lora",
      "Low-rank adapters beside dense layers: y + alpha / rank * B (A x). A and B are trained; everything else is "
      "frozen, unless train.freeze names what is.",
      {
          list_field<&L::layers>("layers", FieldKind::any_names, "The dense layers, by name or glob.").required(),
          field<&L::rank>("rank", "Rows of A and columns of B.").at_least(1).at_most(kMaxSize),
          field<&L::alpha>("alpha", "Scale of the adapters.").above(0),
          field<&L::dropout>("dropout", "Probability that an element of an adapter's input is set to 0.")
              .at_least(0)
              .below(1),
          field<&L::rank_stabilized>("rank_stabilized", "Scale by alpha / sqrt(rank) instead (rsLoRA)."),
          field<&L::dora>(
              "dora",
              "Train the norms of the rows of the adapted weights too (DoRA): y = m / |W + B A| * (W + B A) x "
              "for each row, with the scale of B A as above."),
          field<&L::from>("from",
                          "A folder in PEFT's format whose adapters a new run starts from; relative to the job file. "
                          "Needs `weights`."),
      }};
  return section;
}

}  // namespace

const Section& adapters_section() {
  static const Section section = [] {
    Field lora = make_field("lora", FieldKind::section, "Low-rank adapters (LoRA).");
    lora.section = &lora_section();
    lora.object = [](void* enclosing, bool make) -> void* {
      auto& spec = static_cast<AdaptersSpec*>(enclosing)->lora;
      if (make && !spec) spec.emplace();
      return spec ? &*spec : nullptr;
    };
    using A = AdaptersSpec;
    return Section{"adapters",
                   "Small trained layers added to frozen ones.",
                   {lora,
                    list_field<&A::names>("names", FieldKind::any_names,
                                          "Several adapters on one base: each sample uses one of them. Needs `field`."),
                    field<&A::field>("field",
                                     "The sample field with the index of the sample's adapter in `names`, from 0. With "
                                     "chat and text, a field of the documents with the index or the name.")}};
  }();
  return section;
}

}  // namespace trainctl
