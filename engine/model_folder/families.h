// The families of models whose folders trainctl reads, by model_type of their config.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/model_folder/model_config.h"
#include "engine/model_folder/model_job.h"

namespace trainctl {

struct ModelFamily {
  std::string_view type;  ///< model_type
  std::string_view map;   ///< name map of its tensors
  ModelJob (*job)(const ModelConfig& config, const Finetune& tuning);
  /// Fields that a config.json may leave out, with the defaults of transformers: an object in JSON. Fields whose
  /// default is the same in all families are not listed.
  std::string_view defaults = "{}";
};
const std::vector<ModelFamily>& model_families();
/// Throws SpecError, which lists the known families.
const ModelFamily& find_family(const ModelConfig& config);

ModelJob gpt2_job(const ModelConfig& config, const Finetune& tuning);
ModelJob llama_job(const ModelConfig& config, const Finetune& tuning);
ModelJob mistral_job(const ModelConfig& config, const Finetune& tuning);
ModelJob qwen2_job(const ModelConfig& config, const Finetune& tuning);
ModelJob qwen3_job(const ModelConfig& config, const Finetune& tuning);
ModelJob mixtral_job(const ModelConfig& config, const Finetune& tuning);
ModelJob qwen3_moe_job(const ModelConfig& config, const Finetune& tuning);
ModelJob olmoe_job(const ModelConfig& config, const Finetune& tuning);
ModelJob deepseek_v2_job(const ModelConfig& config, const Finetune& tuning);
ModelJob deepseek_v3_job(const ModelConfig& config, const Finetune& tuning);
ModelJob gpt_oss_job(const ModelConfig& config, const Finetune& tuning);
ModelJob gemma2_job(const ModelConfig& config, const Finetune& tuning);
ModelJob gemma3_job(const ModelConfig& config, const Finetune& tuning);
ModelJob phi3_job(const ModelConfig& config, const Finetune& tuning);
ModelJob bert_job(const ModelConfig& config, const Finetune& tuning);
ModelJob vit_job(const ModelConfig& config, const Finetune& tuning);

}  // namespace trainctl
