// The prompts of `trainctl generate` and of validation.generate, as tokens.
#include "cli/run/launch/generation_prompts.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model_folder/model_folder.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"

namespace trainctl {
namespace {

using PromptJson = nlohmann::ordered_json;

/// A prompt as the user gives it: a text, or a conversation.
struct Prompt {
  std::string text;
  PromptJson context;  ///< `messages` and other variables of the chat template, such as `tools`; null for a text

  bool is_talk() const { return !context.is_null(); }
};

Prompt prompt_of_line(const std::string& line, const std::string& where) {
  const PromptJson json = PromptJson::parse(line, nullptr, false);
  if (!json.is_object()) throw EnvError(where + " is not a JSON object");
  if (const auto text = json.find("prompt"); text != json.end() && text->is_string()) return {*text, {}};
  if (const auto messages = json.find("messages"); messages != json.end() && messages->is_array() && !messages->empty())
    return {"", json};
  throw EnvError(where + " has neither a text `prompt` nor a list `messages`");
}

std::vector<Prompt> read_prompts(const std::string& file) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file);
    if (!stream) throw EnvError("the prompts " + file + " cannot be read");
  }
  std::istream& in = file == "-" ? std::cin : stream;
  std::vector<Prompt> prompts;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::string where = file + ":" + std::to_string(number);
    prompts.push_back(file.ends_with(".jsonl") ? prompt_of_line(line, where) : Prompt{line, {}});
  }
  return prompts;
}

/// The text of the last message.
std::string shown_text(const Prompt& prompt) {
  if (!prompt.is_talk()) return prompt.text;
  const PromptJson& last = prompt.context["messages"].back();
  const PromptJson content = last.is_object() ? last.value("content", PromptJson("")) : last;
  return content.is_string() ? content.get<std::string>() : content.dump();
}

/// From prompts to tokens.
class PromptTokens {
 public:
  PromptTokens(const PromptOptions& options, const GenerationRequest& request) : options_(options) {
    if (!request.tokenizer.empty()) tokenizer_ = open_tokenizer(request.tokenizer);
    if (options.chat && !tokenizer_)
      throw SpecError({}, "--chat", "the job has no tokenizer, and so no chat template",
                      "name one with --tokenizer, or remove --chat");
    if (options.chat) template_.emplace(ChatTemplate::open(request.tokenizer));
  }

  std::vector<int32_t> of(const Prompt& prompt) const {
    if (prompt.is_talk() && !options_.chat) throw SpecError({}, "--prompts", "it has conversations", "add --chat");
    if (options_.chat) return tokenizer_->encode(template_->render(context_of(prompt), true), false);
    if (tokenizer_) return tokenizer_->encode(prompt.text);
    std::vector<int32_t> bytes;
    for (const char byte : prompt.text) bytes.push_back(static_cast<unsigned char>(byte));
    return bytes;
  }

  /// The token that ends an assistant's turn in the template, if it is a special token.
  std::optional<int32_t> end_of_turn() const {
    constexpr const char* kAnswer = "ok";
    if (!template_) return std::nullopt;
    PromptJson context = context_of({"hello", {}});
    const std::string before = template_->render(context, true);
    context["messages"].push_back({{"role", "assistant"}, {"content", kAnswer}});
    const std::string whole = template_->render(context, false);
    if (!whole.starts_with(before)) return std::nullopt;
    const size_t answer = whole.find(kAnswer, before.size());
    if (answer == std::string::npos) return std::nullopt;
    const std::vector<int32_t> rest = tokenizer_->encode(whole.substr(answer + std::strlen(kAnswer)), false);
    return rest.empty() || !is_special(rest[0]) ? std::nullopt : std::optional(rest[0]);
  }

  /// A stop that is one special token, whose text is not part of the answer.
  std::optional<int32_t> special_token(const std::string& text) const {
    const std::optional<int32_t> token = tokenizer_ ? tokenizer_->find(text) : std::nullopt;
    return token && is_special(*token) ? token : std::nullopt;
  }

 private:
  bool is_special(int32_t token) const {
    const std::vector<int32_t> alone = {token};
    return tokenizer_->decode(alone, true).empty() && !tokenizer_->decode(alone, false).empty();
  }

  PromptJson context_of(const Prompt& prompt) const {
    PromptJson messages = PromptJson::array();
    if (!options_.system.empty()) messages.push_back({{"role", "system"}, {"content", options_.system}});
    if (!prompt.is_talk()) messages.push_back({{"role", "user"}, {"content", prompt.text}});
    PromptJson context = prompt.is_talk() ? prompt.context : PromptJson::object();
    if (prompt.is_talk())
      for (const PromptJson& message : context["messages"]) messages.push_back(message);
    context["messages"] = std::move(messages);
    return context;
  }

  const PromptOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
};

}  // namespace

std::string tokenizer_of(const JobSpec& spec, const std::string& option, const std::string& model_folder) {
  if (!option.empty()) return std::filesystem::absolute(option).string();
  if (!spec.dataset.tokenizer.empty()) return spec.dataset.tokenizer;
  if (spec.dataset.type == "text") return "";
  if (!model_folder.empty()) return model_folder;
  throw SpecError({}, "--tokenizer", "is missing, and the job names neither a tokenizer nor a model folder",
                  "name the folder of the tokenizer that made the tokens");
}

void add_prompts(PromptOptions options, GenerationRequest& request) {
  if (!options.system.empty() && !options.chat)
    throw SpecError({}, "--system", "requires --chat", "add --chat, or make it part of the prompt");
  std::vector<Prompt> prompts;
  for (const std::string& text : options.texts) prompts.push_back({text, {}});
  if (!options.file.empty())
    for (Prompt& prompt : read_prompts(options.file)) prompts.push_back(std::move(prompt));
  if (prompts.empty()) throw SpecError({}, "PROMPT", "there is no prompt", "give one, or a file with --prompts");
  if (options.may_chat && std::ranges::any_of(prompts, &Prompt::is_talk)) options.chat = true;
  const PromptTokens tokens(options, request);
  for (const Prompt& prompt : prompts) {
    request.prompts.push_back({shown_text(prompt), tokens.of(prompt)});
    if (request.prompts.back().tokens.empty())
      throw SpecError({}, "PROMPT", "a prompt has no tokens", "give at least one character");
  }
  for (const std::string& stop : options.stops) {
    if (stop.empty()) throw SpecError({}, "--stop", "is empty", "name a text, or remove the option");
    if (const auto token = tokens.special_token(stop))
      request.end_tokens.push_back(*token);
    else
      request.stops.push_back(stop);
  }
  if (const auto end = tokens.end_of_turn()) request.end_tokens.push_back(*end);
}

std::string model_folder_of(const JobSpec& spec) {
  return spec.weights ? folder_of_weights(spec.weights->from) : std::string();
}

/// The most tokens of a text, with its prompt; 0: no limit is known.
static int64_t most_tokens(const JobSpec& spec, const GenerationConfig& config) {
  const int64_t of_network = most_positions(spec);
  const int64_t of_model = config.max_positions > 0 ? config.max_positions : of_network > 0 ? 0 : spec.dataset.length;
  if (of_network == 0 || of_model == 0) return std::max(of_network, of_model);
  return std::min(of_network, of_model);
}

GenerationSize size_of(const JobSpec& spec, const GenerationRequest& request, const GenerationConfig& config) {
  const int64_t limit = most_tokens(spec, config);
  size_t longest = 0;
  for (const GenerationPrompt& prompt : request.prompts) longest = std::max(longest, prompt.tokens.size());
  const auto prompt_tokens = static_cast<int64_t>(longest);
  if (limit > 0 && prompt_tokens >= limit)
    throw SpecError({}, "PROMPT",
                    "a prompt has " + std::to_string(prompt_tokens) + " tokens, but the model reads at most " +
                        std::to_string(limit) + " tokens, with the generated ones",
                    "shorten the prompt");
  GenerationSize size;
  size.rows = std::min(static_cast<int64_t>(request.prompts.size()), std::max<int64_t>(1, spec.dataset.batch));
  size.positions = prompt_tokens + request.max_tokens;
  if (limit > 0) size.positions = std::min(size.positions, limit);
  return size;
}

}  // namespace trainctl
