// The families of models whose folders trainctl reads, by model_type of their config.json.
#include "engine/model_folder/families.h"

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr std::string_view kQwen2Defaults =
    R"({"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28})";
constexpr std::string_view kQwen3Defaults =
    R"({"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28})";
constexpr std::string_view kGemma2Defaults =
    R"({"num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0})";
constexpr std::string_view kGemma3Defaults =
    R"({"num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1000000.0})";
constexpr std::string_view kPhi3Defaults =
    R"({"rms_norm_eps": 1e-05, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096})";
constexpr std::string_view kMixtralDefaults =
    R"({"num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0})";
constexpr std::string_view kDeepseek2Defaults = R"({"q_lora_rank": 1536, "n_shared_experts": 2})";
constexpr std::string_view kDeepseek3Defaults =
    R"({"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
        "routed_scaling_factor": 2.5})";
constexpr std::string_view kGptOssDefaults =
    R"({"num_key_value_heads": 8, "head_dim": 64, "rms_norm_eps": 1e-05, "sliding_window": 128, "rope_theta": 150000.0,
        "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                            "original_max_position_embeddings": 4096}})";

}  // namespace

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> families = {
      {"gpt2", "gpt2", gpt2_job},
      {"llama", "llama", llama_job},
      {"mistral", "llama", mistral_job, R"({"num_key_value_heads": 8, "sliding_window": 4096})"},
      {"qwen2", "llama", qwen2_job, kQwen2Defaults},
      {"qwen3", "llama", qwen3_job, kQwen3Defaults},
      {"gemma2", "gemma", gemma2_job, kGemma2Defaults},
      {"gemma3_text", "gemma", gemma3_job, kGemma3Defaults},
      {"phi3", "phi3", phi3_job, kPhi3Defaults},
      {"mixtral", "mixtral", mixtral_job, kMixtralDefaults},
      {"qwen3_moe", "qwen3_moe", qwen3_moe_job, R"({"num_key_value_heads": 4, "sliding_window": 4096})"},
      {"deepseek_v2", "deepseek", deepseek_v2_job, kDeepseek2Defaults},
      {"deepseek_v3", "deepseek", deepseek_v3_job, kDeepseek3Defaults},
      {"olmoe", "qwen3_moe", olmoe_job, R"({"rms_norm_eps": 1e-05})"},
      {"gpt_oss", "gpt_oss", gpt_oss_job, kGptOssDefaults},
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
