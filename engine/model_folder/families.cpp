// The families of models whose folders trainctl reads, by model_type of their config.json.
#include "engine/model_folder/families.h"

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> families = {
      {"gpt2", "gpt2", gpt2_job},
      {"llama", "llama", llama_job},
      {"mistral", "llama", mistral_job},
      {"qwen2", "llama", qwen2_job},
      {"qwen3", "llama", qwen3_job},
      {"gemma2", "gemma", gemma2_job},
      {"gemma3_text", "gemma", gemma3_job},
      {"phi3", "phi3", phi3_job},
      {"mixtral", "mixtral", mixtral_job},
      {"qwen3_moe", "qwen3_moe", qwen3_moe_job},
      {"deepseek_v2", "deepseek", deepseek_v2_job},
      {"deepseek_v3", "deepseek", deepseek_v3_job},
      {"olmoe", "qwen3_moe", olmoe_job},
      {"gpt_oss", "gpt_oss", gpt_oss_job},
      {"bert", "bert", bert_job},
      {"vit", "vit", vit_job},
  };
  return families;
}

const ModelFamily& find_family(const ModelConfig& config) {
  std::vector<std::string> known;
  for (const ModelFamily& family : model_families()) {
    if (family.type == config.type()) return family;
    known.emplace_back(family.type);
  }
  const std::string near = did_you_mean(config.type(), known);
  throw SpecError({}, config.file(), "unknown model_type '" + config.type() + "'",
                  near + (near.empty() ? "" : " ") + "supported families: " + join(known) +
                      "; for another model, write the network yourself (docs/networks.md) and a name map "
                      "(docs/weights.md)");
}

}  // namespace trainctl
