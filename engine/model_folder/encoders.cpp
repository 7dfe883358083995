// Encoders: BERT (BertForMaskedLM, BertForSequenceClassification) and ViT (ViTForImageClassification). A folder of the
// bare encoder becomes a classifier with a new last layer.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/base/text.h"
#include "engine/model_folder/activation.h"
#include "engine/model_folder/families.h"

namespace trainctl {
namespace {

LayerLine dense(const char* name, const char* units) { return LayerLine(name, "dense").with("units", units); }

std::string layer_norm(const char* name, double eps) { return LayerLine(name, "layer_norm").with("eps", eps).text(); }

std::string sum(const char* name, const char* inputs) { return LayerLine(name, "add").with("inputs", inputs).text(); }

/// `inputs`: "[q, k, v]", possibly with a mask. `dropout`: rate of dropout on the attention weights.
std::string attention(const char* inputs, double dropout) {
  LayerLine line("attn", "attention");
  line.with("inputs", inputs).with("heads", "${heads}");
  if (dropout > 0) line.with("dropout", dropout);
  return line.text();
}

bool has_architecture(const ModelConfig& config, const char* name) {
  const std::vector<std::string> all = config.texts("architectures");
  return std::find(all.begin(), all.end(), name) != all.end();
}

int64_t num_labels(const ModelConfig& config) {
  const ModelConfig::Json* labels = config.find("id2label");
  return labels == nullptr ? config.integer("num_labels", 2) : static_cast<int64_t>(labels->size());
}

/// The last layer is new if the files have none, or one for another number of classes.
void set_classes(const ModelConfig& config, const Finetune& tuning, const char* architecture, ModelJob& job) {
  const int64_t known = num_labels(config), classes = tuning.classes > 0 ? tuning.classes : known;
  job.has_new_head = !has_architecture(config, architecture) || classes != known;
  job.vars.emplace_back("classes", std::to_string(classes));
}

/// The normalization of preprocessor_config.json, for pixels from 0 to 255; each value is 0.5 without that file.
std::string pixels_of(const ModelConfig& config) {
  const auto path = std::filesystem::path(config.file()).parent_path() / "preprocessor_config.json";
  std::ifstream file(path);
  const auto json = file ? ModelConfig::Json::parse(file, nullptr, false) : ModelConfig::Json::object();
  const auto numbers = [&](const char* field) {
    std::vector<double> values(3, 0.5);
    if (json.is_object() && json.contains(field) && json[field].is_array()) values.clear();
    if (values.empty())
      for (const auto& value : json[field]) values.push_back(value.is_number() ? value.get<double>() : 0.5);
    std::vector<std::string> texts;
    for (const double value : values) texts.push_back(fmt::format("{:.6g}", value * 255));
    return "[" + join(texts) + "]";
  };
  return "{mean: " + numbers("image_mean") + ", std: " + numbers("image_std") + "}";
}

void add_encoder_vars(const ModelConfig& config, ModelJob& job) {
  job.vars = {{"layers", std::to_string(config.integer("num_hidden_layers"))},
              {"heads", std::to_string(config.integer("num_attention_heads"))},
              {"d", std::to_string(config.integer("hidden_size"))},
              {"hidden", std::to_string(config.integer("intermediate_size"))}};
}

/// The rows of an image: a trained one, added to a row of zeros, and then the patches.
std::vector<std::string> vit_rows() {
  const std::string patches = "(image // patch) * (image // patch)";
  return {LayerLine("patches", "conv2d")
              .with("channels", "${d}")
              .with("kernel", "${patch}")
              .with("stride", "${patch}")
              .text(),
          LayerLine("pixels", "reshape").with("shape", "[\"${d}\", \"${" + patches + "}\"]").text(),
          LayerLine("tokens", "transpose").with("perm", "[0, 2, 1]").text(),
          LayerLine("first", "slice").with("dim", int64_t{1}).with("end", int64_t{1}).text(),
          LayerLine("zero", "scale").with("factor", 0.0).text(),
          LayerLine("class_token", "position_embedding").with("max_length", int64_t{1}).text(),
          LayerLine("rows", "concat").with("inputs", "[class_token, tokens]").with("dim", int64_t{1}).text(),
          LayerLine("positions", "position_embedding").with("max_length", "${" + patches + " + 1}").text(),
          R"({module: block, name: h, repeat: "${layers}"})"};
}

/// The first row, through a dense layer if the model has one, gives the classes.
void add_classifier(ModelJob& job, bool has_pooler) {
  job.network.push_back(LayerLine("cls", "slice").with("dim", int64_t{1}).with("end", int64_t{1}).text());
  job.network.push_back(LayerLine("cls_row", "squeeze").with("dim", int64_t{1}).text());
  if (has_pooler) job.network.push_back(dense("pooler", "${d}").text());
  if (has_pooler) job.network.push_back(LayerLine("pooled", "tanh").text());
  job.network.push_back(dense("classifier", "${classes}").text());
}

/// Norms follow the sums.
std::vector<std::string> bert_block(const std::string& activation, double eps, bool is_masked, double dropout) {
  return {dense("q", "${d}").text(),
          dense("k", "${d}").with("inputs", "input").text(),
          dense("v", "${d}").with("inputs", "input").text(),
          attention(is_masked ? "[q, k, v, mask]" : "[q, k, v]", dropout),
          dense("proj", "${d}").text(),
          sum("sum1", "[proj, input]"),
          layer_norm("norm1", eps),
          dense("up", "${hidden}").text(),
          LayerLine("act", activation).text(),
          dense("down", "${d}").text(),
          sum("sum2", "[down, norm1]"),
          layer_norm("norm2", eps)};
}

/// Without a second input of token types, every token has type 0: the row 0 of the table is added at each position.
std::vector<std::string> bert_embeddings(double eps) {
  return {
      LayerLine("words", "embedding").with("vocab", "${vocab}").with("units", "${d}").text(),
      LayerLine("first", "slice").with("dim", int64_t{1}).with("end", int64_t{1}).text(),
      LayerLine("zero", "scale").with("factor", 0.0).text(),
      LayerLine("types", "position_embedding").with("max_length", "${token_types}").text(),
      LayerLine("positions", "position_embedding").with("max_length", "${max_length}").with("inputs", "words").text(),
      sum("embedded", "[positions, types]"),
      layer_norm("norm", eps),
      R"({module: block, name: h, repeat: "${layers}"})"};
}

}  // namespace

ModelJob bert_job(const ModelConfig& config, const Finetune& tuning) {
  config.refuse_if_set({"is_decoder", "add_cross_attention", "quantization_config"});
  if (config.text("position_embedding_type", "absolute") != "absolute") config.refuse("position_embedding_type");
  config.ignore({"gradient_checkpointing", "directionality", "pooler_fc_size", "pooler_num_attention_heads",
                 "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "tie_word_embeddings"});
  const double eps = config.number("layer_norm_eps", 1e-12);
  const std::string activation = activation_of(config, "hidden_act", "gelu");
  const int64_t positions = config.integer("max_position_embeddings", 512);
  ModelJob job{.title = "BERT", .map = "bert"};
  add_encoder_vars(config, job);
  job.vars.emplace_back("vocab", std::to_string(config.integer("vocab_size")));
  job.vars.emplace_back("max_length", std::to_string(positions));
  job.vars.emplace_back("token_types", std::to_string(config.integer("type_vocab_size", 2)));
  job.vars.emplace_back("length", std::to_string(std::min<int64_t>(positions, 128)));
  job.modules = {{"block", bert_block(activation, eps, tuning.is_classifier(), tuning.attention_dropout(config))}};
  job.network = bert_embeddings(eps);
  if (has_architecture(config, "BertForMaskedLM") && !tuning.is_classifier()) {
    job.network.push_back(dense("transform", "${d}").text());
    job.network.push_back(LayerLine("transform_act", activation).text());
    job.network.push_back(layer_norm("transform_norm", eps));
    job.network.push_back(dense("head", "${vocab}").with("share", "words").text());
  } else {
    job.input = ModelInput::text_class;
    set_classes(config, tuning, "BertForSequenceClassification", job);
    add_classifier(job, true);
  }
  job.no_decay = {"*.bias", "*norm*.weight"};
  return job;
}

ModelJob vit_job(const ModelConfig& config, const Finetune& tuning) {
  config.refuse_if_set({"quantization_config"});
  config.ignore({"encoder_stride", "pooler_act", "pooler_output_size"});
  const double eps = config.number("layer_norm_eps", 1e-12);
  const std::string activation = activation_of(config, "hidden_act", "gelu");
  const bool bias = config.flag("qkv_bias", true);
  const auto product = [&](const char* name) {
    return dense(name, "${d}").with("bias", bias).with("inputs", "norm1").text();
  };
  ModelJob job{.title = "ViT", .map = "vit"};
  add_encoder_vars(config, job);
  job.vars.emplace_back("image", std::to_string(config.integer("image_size", 224)));
  job.vars.emplace_back("patch", std::to_string(config.integer("patch_size", 16)));
  job.vars.emplace_back("channels", std::to_string(config.integer("num_channels", 3)));
  set_classes(config, tuning, "ViTForImageClassification", job);
  job.modules = {{"block",
                  {layer_norm("norm1", eps), product("q"), product("k"), product("v"),
                   attention("[q, k, v]", tuning.attention_dropout(config)), dense("proj", "${d}").text(),
                   sum("sum1", "[proj, input]"), layer_norm("norm2", eps), dense("up", "${hidden}").text(),
                   LayerLine("act", activation).text(), dense("down", "${d}").text(), sum("sum2", "[down, sum1]")}}};
  job.network = vit_rows();
  job.network.push_back(layer_norm("norm", eps));
  add_classifier(job, false);
  job.input = ModelInput::image_class;
  job.pixels = pixels_of(config);
  job.no_decay = {"*.bias", "*norm*.weight"};
  return job;
}

}  // namespace trainctl
