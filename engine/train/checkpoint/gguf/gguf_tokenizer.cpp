// The tokenizer of a model folder as settings of llama.cpp: byte-level BPE ("gpt2"), and BPE over the pieces of
// SentencePiece with bytes as the last resort ("llama").
#include "engine/train/checkpoint/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/text/known_patterns.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

using Settings = std::vector<std::pair<std::string, GgufSetting>>;

/// Kinds of tokens in the format.
enum TokenKind : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

[[noreturn]] void refuse_tokenizer(const std::string& what, const std::string& hint) {
  throw SpecError({}, "--format", what, hint);
}

std::string text_of_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Reads a JSON file; an empty object if there is no such file.
nlohmann::json read_json(const fs::path& path) {
  if (!fs::exists(path)) return nlohmann::json::object();
  nlohmann::json json = nlohmann::json::parse(text_of_file(path), nullptr, false);
  if (!json.is_object()) throw EnvError(path.string() + " is not a JSON object");
  return json;
}

/// All steps of a pre-tokenizer or normalizer, in order. A step that is itself a sequence is replaced by its steps.
std::vector<nlohmann::json> steps_of(const nlohmann::json& part, const char* list) {
  if (!part.is_object()) return {};
  if (field_or(part, "type", "") != "Sequence") return {part};
  std::vector<nlohmann::json> steps;
  for (const nlohmann::json& inner : part.value(list, nlohmann::json::array()))
    for (nlohmann::json& step : steps_of(inner, list)) steps.push_back(std::move(step));
  return steps;
}

bool has_step(const std::vector<nlohmann::json>& steps, const char* type) {
  return std::any_of(steps.begin(), steps.end(),
                     [&](const nlohmann::json& step) { return field_or(step, "type", "") == type; });
}

/// llama.cpp's name for the way in which a text is split before BPE.
std::string split_name(const std::vector<nlohmann::json>& steps) {
  for (const nlohmann::json& step : steps) {
    if (field_or(step, "type", "") != "Split") continue;
    const nlohmann::json& pattern = step.contains("pattern") ? step["pattern"] : nlohmann::json::object();
    const std::string regex = pattern.is_object() ? field_or(pattern, "Regex", "") : "";
    if (regex == kLlama3Pattern) return "llama-bpe";
    if (regex == kQwen2Pattern) return "qwen2";
    refuse_tokenizer(
        "gguf has no name for the pre-tokenizer that splits at " + (regex.empty() ? pattern.dump() : regex),
        "supported: those of GPT-2, Llama 3, Qwen 2 and SmolLM");
  }
  return has_step(steps, "Digits") ? "smollm" : "gpt-2";
}

class TokenizerReader {
 public:
  TokenizerReader(const std::string& folder, int64_t vocab)
      : folder_(folder),
        tokenizer_(read_json(folder_ / "tokenizer.json")),
        config_(read_json(folder_ / "config.json")),
        settings_(read_json(folder_ / "tokenizer_config.json")),
        tokens_(static_cast<size_t>(vocab)),
        kinds_(static_cast<size_t>(vocab), kUnused) {
    if (tokenizer_.empty())
      refuse_tokenizer(folder + " has no tokenizer.json, from which gguf gets its tokens",
                       "set weights.from to a model folder with its tokenizer, or give one with --tokenizer");
    model_ = tokenizer_.value("model", nlohmann::json::object());
    if (field_or(model_, "type", "BPE") != "BPE")
      refuse_tokenizer("gguf export supports BPE tokenizers, not " + field_or(model_, "type", ""),
                       "export a model folder with -o FOLDER/");
    steps_ = steps_of(tokenizer_.value("pre_tokenizer", nlohmann::json()), "pretokenizers");
  }

  Settings read() {
    add_vocabulary();
    const bool is_bytes = has_step(steps_, "ByteLevel");
    if (!is_bytes && !field_or(model_, "byte_fallback", false))
      refuse_tokenizer("gguf export supports BPE over bytes, or with byte_fallback",
                       "export a model folder with -o FOLDER/");
    add("ggml.model", std::string(is_bytes ? "gpt2" : "llama"));
    if (is_bytes)
      add("ggml.pre", split_name(steps_));
    else
      add_scores();
    add("ggml.tokens", tokens_);
    add("ggml.token_type", kinds_);
    if (is_bytes) add("ggml.merges", merges());
    add_special_tokens();
    if (const std::string chat = chat_template(); !chat.empty()) all_.emplace_back("tokenizer.chat_template", chat);
    return std::move(all_);
  }

 private:
  void add(const std::string& key, GgufSetting value) { all_.emplace_back("tokenizer." + key, std::move(value)); }

  void put(int64_t id, const std::string& token, TokenKind kind) {
    if (id < 0 || id >= static_cast<int64_t>(tokens_.size())) return;
    tokens_[static_cast<size_t>(id)] = token;
    kinds_[static_cast<size_t>(id)] = kind;
  }

  void add_vocabulary() {
    const std::string unknown = field_or(model_, "unk_token", "");
    const nlohmann::json vocabulary = model_.value("vocab", nlohmann::json::object());  // outlives the loop
    for (const auto& [token, id] : vocabulary.items()) {
      const bool is_byte = token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
      put(id.get<int64_t>(), token, is_byte && field_or(model_, "byte_fallback", false) ? kByte : kNormal);
    }
    for (const nlohmann::json& added : tokenizer_.value("added_tokens", nlohmann::json::array())) {
      const std::string token = field_or(added, "content", "");
      const TokenKind kind = token == unknown ? kUnknown : field_or(added, "special", false) ? kControl : kUserDefined;
      put(field_or(added, "id", int64_t{-1}), token, kind);
    }
    for (size_t id = 0; id < tokens_.size(); ++id)
      if (kinds_[id] == kUnused) tokens_[id] = "[PAD" + std::to_string(id) + "]";
  }

  /// The merges, each written as "left right". Older files store them as such texts, newer ones as pairs.
  std::vector<std::string> merges() const {
    std::vector<std::string> merges;
    for (const nlohmann::json& merge : model_.value("merges", nlohmann::json::array()))
      merges.push_back(merge.is_string() ? merge.get<std::string>()
                                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
    return merges;
  }

  /// SentencePiece merges the pair whose token has the highest score first: earlier merges score higher.
  void add_scores() {
    std::unordered_map<std::string, float> ranks;
    const std::vector<std::string> all = merges();
    for (size_t i = 0; i < all.size(); ++i) {
      std::string token = all[i];
      token.erase(token.find(' '), 1);
      ranks.emplace(token, -static_cast<float>(i + 1));
    }
    const float last = -static_cast<float>(all.size() + 1);
    std::vector<float> scores;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const auto found = kinds_[id] == kNormal ? ranks.find(tokens_[id]) : ranks.end();
      scores.push_back(kinds_[id] != kNormal ? 0 : found == ranks.end() ? last : found->second);
    }
    add("ggml.scores", std::move(scores));
    const std::vector<nlohmann::json> normal =
        steps_of(tokenizer_.value("normalizer", nlohmann::json()), "normalizers");
    const bool has_metaspace = std::any_of(steps_.begin(), steps_.end(), [](const nlohmann::json& step) {
      return field_or(step, "type", "") == "Metaspace" && field_or(step, "prepend_scheme", "always") != "never" &&
             field_or(step, "add_prefix_space", true);
    });
    add("ggml.add_space_prefix", has_metaspace || has_step(normal, "Prepend"));
  }

  /// The id of a token that tokenizer_config.json names; -1: there is none.
  int64_t id_of(const char* field) const {
    if (!settings_.contains(field)) return -1;
    const nlohmann::json& named = settings_[field];
    const std::string token = named.is_object()   ? field_or(named, "content", "")
                              : named.is_string() ? named.get<std::string>()
                                                  : "";
    const auto found = std::find(tokens_.begin(), tokens_.end(), token);
    return token.empty() || found == tokens_.end() ? -1 : found - tokens_.begin();
  }

  void add_special_tokens() {
    for (const std::string kind : {"bos", "eos", "unk", "pad"}) {
      int64_t id = id_of((kind + "_token").c_str());
      const std::string field = kind + "_token_id";
      if (id < 0 && config_.contains(field)) {
        const nlohmann::json& given = config_[field];
        const nlohmann::json& first = given.is_array() && !given.empty() ? given[0] : given;
        if (first.is_number_integer()) id = first.get<int64_t>();
      }
      if (id < 0 || id >= static_cast<int64_t>(tokens_.size())) continue;
      const std::string name = kind == "unk" ? "unknown" : kind == "pad" ? "padding" : kind;
      add("ggml." + name + "_token_id", static_cast<uint32_t>(id));
    }
    add("ggml.add_bos_token", adds("bos_token", true));
    add("ggml.add_eos_token", adds("eos_token", false));
  }

  /// Returns whether a text gets this token at its begin or end.
  bool adds(const char* token, bool is_first) const {
    const std::string field = std::string("add_") + token;
    if (settings_.contains(field) && settings_[field].is_boolean()) return settings_[field].get<bool>();
    for (const nlohmann::json& step : steps_of(tokenizer_.value("post_processor", nlohmann::json()), "processors")) {
      const nlohmann::json single = step.value("single", nlohmann::json::array());
      if (field_or(step, "type", "") != "TemplateProcessing" || !single.is_array() || single.empty()) continue;
      if ((is_first ? single.front() : single.back()).contains("SpecialToken")) return true;
    }
    return false;
  }

  std::string chat_template() const {
    if (const fs::path file = folder_ / "chat_template.jinja"; fs::exists(file)) return text_of_file(file);
    return field_or(settings_, "chat_template", "");
  }

  fs::path folder_;
  nlohmann::json tokenizer_, config_, settings_, model_;
  std::vector<nlohmann::json> steps_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> kinds_;
  Settings all_;
};

}  // namespace

std::vector<std::pair<std::string, GgufSetting>> gguf_tokenizer(const std::string& folder, int64_t vocab) {
  try {
    return TokenizerReader(folder, vocab).read();
  } catch (const nlohmann::json::exception& error) {
    throw EnvError(folder + "/tokenizer.json is damaged: " + error.what());
  }
}

}  // namespace trainctl
