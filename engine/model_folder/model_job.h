// A job for the model of a folder, before it is text: what a family of models contributes to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model_folder/finetune.h"

namespace trainctl {

/// A line of a network: {name: norm1, type: rms_norm, eps: 1e-06}.
class LayerLine {
 public:
  LayerLine(std::string_view name, std::string_view type);
  LayerLine& with(std::string_view key, std::string_view value);
  LayerLine& with(std::string_view key, const char* value) { return with(key, std::string_view(value)); }
  LayerLine& with(std::string_view key, int64_t value);
  LayerLine& with(std::string_view key, double value);
  LayerLine& with(std::string_view key, bool value) { return with(key, value ? "true" : "false"); }
  LayerLine& with(std::string_view key, const std::vector<double>& values);
  /// Adds all of these, which were made with `with` of another line.
  LayerLine& with_fields(const std::string& fields);
  std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

/// The samples that a network reads.
enum class ModelInput : uint8_t {
  next_token,  ///< rows of tokens, each position is labelled with a token
  text_class,  ///< rows of tokens, each with one label
  image_class  ///< images, each with one label
};

/// An entry of `modules`.
struct ModelModule {
  std::string name;
  std::vector<std::string> layers;
  std::vector<std::string> args{};  ///< "window: 0"
};

struct ModelJob {
  std::string title;  ///< for the head of the file: "Llama"
  std::string map;    ///< name map of the family
  std::vector<std::pair<std::string, std::string>> vars{};
  std::vector<ModelModule> modules{};
  std::vector<std::string> network{};
  std::vector<std::string> no_decay{};   ///< patterns of parameters without weight decay
  std::vector<std::string> recompute{};  ///< layers that are cheap to recompute, and large
  ModelInput input = ModelInput::next_token;
  bool has_new_head = false;            ///< the files have no weights for the last layer, or for other classes
  bool is_decoder = false;              ///< predicts the next token from those before it
  std::vector<std::string> products{};  ///< patterns of the dense layers of the blocks
  std::string pixels{};                 ///< fields of the transform normalize, for images
};

/// The text of the job file. `from`: the model folder, as the job names it; `name`: the job's name.
std::string job_text(const ModelJob& job, const Finetune& tuning, const std::string& from, const std::string& name);

/// A text in YAML's double quotes, in which ${ is not an expression.
std::string quoted(const std::string& text);
/// "['h.*.qkv', head]", each in quotes.
std::string quoted_list(const std::vector<std::string>& patterns);

}  // namespace trainctl
