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
      "Low-rank adapters for dense layers: y + alpha / rank * B (A x). A and B are trained; all other parameters are "
      "frozen, unless train.freeze specifies which parameters are frozen.",
      {
          list_field<&L::layers>("layers", FieldKind::any_names, "Dense layers to adapt, by name or glob.").required(),
          field<&L::rank>("rank", "Rank of the adapters: the number of rows of A and of columns of B.")
              .at_least(1)
              .at_most(kMaxSize),
          field<&L::alpha>("alpha", "Scaling parameter alpha of the adapters.").above(0),
          field<&L::dropout>("dropout", "Dropout probability for the input of each adapter.").at_least(0).below(1),
          field<&L::rank_stabilized>("rank_stabilized",
                                     "Scale the adapters by alpha / sqrt(rank) instead of alpha / rank (rsLoRA)."),
          field<&L::dora>("dora",
                          "Also train the norms m of the rows of the adapted weights (DoRA): for each row, y = m / |W "
                          "+ B A| * (W + B A) x, with B A scaled as in LoRA."),
          field<&L::from>("from",
                          "Folder in PEFT format with the adapters from which a new run starts, relative to the job "
                          "file. Requires `weights`."),
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
    return Section{
        "adapters",
        "Small trainable layers added to frozen layers.",
        {lora,
         list_field<&A::names>(
             "names", FieldKind::any_names,
             "Names of several adapters on one base model; each sample uses one of them. Requires `field`."),
         field<&A::field>("field",
                          "Sample field that contains the index of the sample's adapter in `names`, counted from 0. "
                          "For chat and text, a document field that contains the index or the name.")}};
  }();
  return section;
}

}  // namespace trainctl
