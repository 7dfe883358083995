// A model's chat template: from the messages of a conversation to the text that the model reads.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/render.h"
#include "engine/text/tokenizer.h"

namespace trainctl {

struct Conversation {
  std::string text;
  std::vector<jinja::Rendered::Range> assistant;  ///< bytes that assistants write, each with the end of its turn
};

class ChatTemplate {
 public:
  /// `source`: a Jinja template. `variables`: bos_token, eos_token and others. Throws EnvError for what is not
  /// supported.
  ChatTemplate(std::string_view source, nlohmann::ordered_json variables);
  /// The template of a tokenizer's folder: chat_template.jinja, or chat_template in tokenizer_config.json. `tokenizer`:
  /// the folder, or a file in it. Throws EnvError if there is none.
  static ChatTemplate open(const std::string& tokenizer);
  /// Returns whether open() finds one.
  static bool is_in(const std::string& tokenizer);

  /// `context`: an object with `messages` and possibly `tools` and other variables. Throws EnvError if the template
  /// refuses it.
  std::string render(const nlohmann::ordered_json& context, bool add_generation_prompt) const;
  /// The whole conversation. `marks_assistant`: also the ranges of assistants; throws EnvError if they cannot be found,
  /// because the template has no {% generation %} and renders a message differently when more messages follow it.
  Conversation conversation(const nlohmann::ordered_json& context, bool marks_assistant) const;

 private:
  jinja::Rendered run(const nlohmann::ordered_json& context, bool add_generation_prompt) const;
  std::optional<jinja::Rendered::Range> content_range(nlohmann::ordered_json context, size_t message,
                                                      const std::string& whole) const;
  jinja::Rendered::Range assistant_range(const nlohmann::ordered_json& context, size_t message,
                                         const std::string& whole) const;

  jinja::Template template_;
  nlohmann::ordered_json variables_;
};

/// The number of bytes of the characters that both texts begin with.
size_t common_prefix(std::string_view a, std::string_view b);

/// The text of bos_token, eos_token, pad_token or unk_token in the tokenizer_config.json of a tokenizer's folder; empty
/// if there is none.
std::string special_token_of(const std::string& tokenizer, const char* key);

/// Tokens, and which of them the ranges cover, at least in part.
struct MarkedTokens {
  std::vector<int32_t> tokens;
  std::vector<bool> marked;
};
MarkedTokens encode_marked(const Tokenizer& tokenizer, const Conversation& conversation, WordCache& cache);

}  // namespace trainctl
