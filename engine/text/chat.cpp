// Finds the chat template of a folder, renders conversations, and finds the tokens that assistants wrote.
#include "engine/text/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/text/jinja/text_functions.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Range = jinja::Rendered::Range;

/// The text with which a message ends: what follows its content if it is the last one and if it is not, without a part
/// of a special token such as <|end|> or [INST].
std::string end_of_turn(std::string_view of_last, std::string_view of_other) {
  std::string_view end = of_last.substr(0, common_prefix(of_last, of_other));
  if (end.size() < of_last.size() || end.size() < of_other.size()) {
    const size_t open = end.find_last_of("<[");
    if (open != std::string_view::npos && end.find_first_of(">]", open) == std::string_view::npos)
      end = end.substr(0, open);
  }
  return jinja::strip_text(end, {}, false, true);
}

size_t common_tokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

Json first_messages(const Json& context, size_t count) {
  Json part = context;
  Json& messages = part["messages"];
  messages.erase(messages.begin() + static_cast<ptrdiff_t>(count), messages.end());
  return part;
}

/// A token of tokenizer_config.json: a text, or an object with its content.
std::string token_text(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  return found->is_object() && found->contains("content") && (*found)["content"].is_string()
             ? (*found)["content"].get<std::string>()
             : "";
}

/// The template in tokenizer_config.json: a text, or a list of named ones, from which `default` is used.
std::string template_in(const Json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const Json& one : *found)
      if (one.is_object() && one.value("name", "") == "default") return one.value("template", "");
  return "";
}

std::string file_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return in ? std::move(text).str() : std::string();
}

constexpr const char *kConfigFile = "tokenizer_config.json", *kTemplateFile = "chat_template.jinja";

fs::path folder_of_tokenizer(const std::string& tokenizer) {
  return fs::is_directory(tokenizer) ? fs::path(tokenizer) : fs::path(tokenizer).parent_path();
}

/// An empty object if the folder has none.
Json read_tokenizer_config(const fs::path& folder) {
  const fs::path file = folder / kConfigFile;
  Json config = Json::parse(file_text(file), nullptr, false);
  if (fs::exists(file) && !config.is_object()) throw EnvError(file.string() + ": is not a JSON object");
  return config.is_object() ? config : Json::object();
}

}  // namespace

size_t common_prefix(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto at = static_cast<size_t>(end - a.begin());
  while (at > 0 && at < b.size() && (static_cast<unsigned char>(b[at]) & 0xC0) == 0x80) --at;  // a whole character
  return at;
}

std::string special_token_of(const std::string& tokenizer, const char* key) {
  return token_text(read_tokenizer_config(folder_of_tokenizer(tokenizer)), key);
}

bool ChatTemplate::is_in(const std::string& tokenizer) {
  const fs::path folder = folder_of_tokenizer(tokenizer);
  return fs::exists(folder / kTemplateFile) || !template_in(read_tokenizer_config(folder)).empty();
}

ChatTemplate::ChatTemplate(std::string_view source, Json variables)
    : template_(source), variables_(std::move(variables)) {}

ChatTemplate ChatTemplate::open(const std::string& tokenizer) {
  const fs::path folder = folder_of_tokenizer(tokenizer);
  const fs::path config_file = folder / kConfigFile, template_file = folder / kTemplateFile;
  const Json config = read_tokenizer_config(folder);
  const std::string source = fs::exists(template_file) ? file_text(template_file) : template_in(config);
  if (source.empty())
    throw EnvError(folder.string() +
                   ": has no chat template; add chat_template.jinja, or chat_template to "
                   "tokenizer_config.json");
  Json variables = Json::object();
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    std::string text = token_text(config, key);
    if (!text.empty()) variables[key] = std::move(text);
  }
  try {
    return ChatTemplate(source, std::move(variables));
  } catch (const EnvError& error) {
    throw EnvError((fs::exists(template_file) ? template_file : config_file).string() +
                   ": chat template: " + error.what());
  }
}

namespace {

/// Templates render a field that a message lacks as an empty text, so that a wrong format would not be noticed.
void require_roles(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (message.is_object() && message.contains("role") && message["role"].is_string()) continue;
    const bool is_shared = message.is_object() && message.contains("from") && message.contains("value");
    throw EnvError(fmt::format("message {} has no role; a message is {{\"role\": \"user\", \"content\": \"…\"}}{}",
                               i + 1,
                               is_shared ? ", so rename from and value, human and gpt (ShareGPT) to role and content, "
                                           "user and assistant"
                                         : ""));
  }
}

}  // namespace

jinja::Rendered ChatTemplate::run(const Json& context, bool add_generation_prompt) const {
  if (const auto messages = context.find("messages"); messages != context.end()) require_roles(*messages);
  Json all = variables_;
  all.update(context);
  if (const auto tools = all.find("tools"); tools != all.end() && tools->is_string()) {  // as many data sets store them
    Json list = Json::parse(tools->get<std::string>(), nullptr, false);
    if (!list.is_array()) throw EnvError("tools is a text, but not a list in JSON");
    *tools = std::move(list);
  }
  all["add_generation_prompt"] = add_generation_prompt;
  return template_.render(jinja::Value::from(all).dict());
}

std::string ChatTemplate::render(const Json& context, bool add_generation_prompt) const {
  return run(context, add_generation_prompt).text;
}

Conversation ChatTemplate::conversation(const Json& context, bool marks_assistant) const {
  if (!context.contains("messages") || !context["messages"].is_array()) throw EnvError("there are no messages");
  jinja::Rendered rendered = run(context, false);
  Conversation result{std::move(rendered.text), {}};
  if (!marks_assistant) return result;
  if (template_.has_generation()) {
    result.assistant = std::move(rendered.generated);
    return result;
  }
  const Json& messages = context["messages"];
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].is_object() && messages[i].value("role", Json()) == "assistant")
      result.assistant.push_back(assistant_range(context, i, result.text));
  return result;
}

/// Finds where the template writes the content of a message, by rendering another content in its place. Returns nothing
/// if the template writes it twice or not at all, or if other text depends on it.
std::optional<Range> ChatTemplate::content_range(Json context, size_t message, const std::string& whole) const {
  constexpr std::string_view kOther = "kTRAINCTLplaceOFcontentZ";
  Json& content = context["messages"][message]["content"];
  if (!content.is_string()) return std::nullopt;
  content = kOther;
  const std::string other = render(context, false);
  const size_t begin = other.find(kOther);
  if (begin == std::string::npos || other.find(kOther, begin + 1) != std::string::npos) return std::nullopt;
  const std::string_view before = std::string_view(other).substr(0, begin),
                         after = std::string_view(other).substr(begin + kOther.size());
  const bool fits = whole.size() >= before.size() + after.size() && whole.starts_with(before) && whole.ends_with(after);
  return fits ? std::optional<Range>({begin, whole.size() - after.size()}) : std::nullopt;
}

/// Finds the bytes of the answer `message`. The answer begins after the prompt that asks for it. It ends where the
/// conversation would end if the answer were its last message. If the template renders the last message differently,
/// the answer ends after its content and the text that follows the content in both renderings.
Range ChatTemplate::assistant_range(const Json& context, size_t message, const std::string& whole) const {
  const Json until = first_messages(context, message + 1);
  const std::string before = render(first_messages(context, message), false);
  const std::string prompt = render(first_messages(context, message), true);
  const std::string after = render(until, false);
  std::optional<size_t> begin;
  if (whole.starts_with(prompt))
    begin = prompt.size();
  else if (whole.starts_with(before))
    begin = common_prefix(prompt, whole);
  const std::string trimmed = jinja::strip_text(after, {}, false, true);
  if (begin && whole.starts_with(trimmed) && trimmed.size() >= *begin) return {*begin, trimmed.size()};
  const Json& content = context["messages"][message].value("content", Json());
  const std::string text = content.is_string() ? jinja::strip_text(content.get<std::string>(), {}) : std::string();
  if (begin && !text.empty() && trimmed.rfind(text) != std::string::npos) {
    const std::string answer = trimmed.substr(trimmed.rfind(text));
    if (const size_t at = whole.find(answer, *begin); at != std::string::npos) return {*begin, at + answer.size()};
  }
  const std::optional<Range> here = content_range(context, message, whole), last = content_range(until, message, after);
  if (here && last) {
    const std::string end =
        end_of_turn(std::string_view(after).substr(last->end), std::string_view(whole).substr(here->end));
    return {begin && *begin <= here->begin ? *begin : here->begin, here->end + end.size()};
  }
  throw EnvError(
      fmt::format("the tokens of message {} cannot be found, because the chat template renders it differently "
                  "in the conversation; surround what the assistant writes with {{% generation %}} and "
                  "{{% endgeneration %}} in the template, or use train_on: all",
                  message + 1));
}

MarkedTokens encode_marked(const Tokenizer& tokenizer, const Conversation& conversation, WordCache& cache) {
  MarkedTokens result;
  const std::string_view text = conversation.text;
  tokenizer.encode(text, false, cache, result.tokens);
  result.marked.resize(result.tokens.size());
  std::vector<int32_t> part;
  const auto tokens_before = [&](size_t end) {  // the number of tokens that lie completely within the first `end` bytes
    part.clear();
    tokenizer.encode(text.substr(0, end), false, cache, part);
    return common_tokens(part, result.tokens);
  };
  for (const Range& range : conversation.assistant) {
    if (range.begin >= range.end) continue;
    const size_t first = tokens_before(range.begin);
    size_t last = tokens_before(range.end);
    if (last < part.size() && last < result.tokens.size()) ++last;  // includes a token that crosses the end
    for (size_t i = first; i < last; ++i) result.marked[i] = true;
  }
  return result;
}

}  // namespace trainctl
