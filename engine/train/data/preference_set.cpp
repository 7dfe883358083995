// Pairs of answers to a prompt (dataset.type preference), in the forms that TRL accepts.
#include "engine/train/data/preference_set.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/sources/file_list.h"

namespace trainctl {
namespace {

using PairJson = nlohmann::ordered_json;

/// Returns the messages with which both lists begin.
PairJson common_messages(const PairJson& a, const PairJson& b) {
  PairJson common = PairJson::array();
  for (size_t i = 0; i < std::min(a.size(), b.size()) && a[i] == b[i]; ++i) common.push_back(a[i]);
  return common;
}

PairJson without_first(const PairJson& messages, size_t count) {
  PairJson rest = PairJson::array();
  for (size_t i = count; i < messages.size(); ++i) rest.push_back(messages[i]);
  return rest;
}

/// Returns where the answers begin, as TRL does: where the texts begin to differ, without a space before that. If one
/// text begins with all of the other, the last character that they share belongs to the answers.
size_t end_of_prompt(const std::string& a, const std::string& b) {
  size_t end = common_prefix(a, b);
  if (end == 0) return 0;
  if (end < std::min(a.size(), b.size())) return a[end - 1] == ' ' ? end - 1 : end;
  const auto continues = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; };  // in UTF-8
  do --end;
  while (end > 0 && continues(a[end]));
  return end;
}

/// Tokenizes the answers of pairs.
class PairTokenizer {
 public:
  /// Throws SpecError (dataset.tokenizer) if the tokenizer or the chat template cannot be read.
  explicit PairTokenizer(const DatasetSpec& spec);
  /// Tokenizes field `name` (chosen or rejected) of a line of the set, after the prompt. Throws EnvError, without the
  /// place of the line, if the line is not a pair.
  MarkedTokens answer(const std::string& line, const char* name, WordCache& cache) const;

 private:
  /// `row`: its fields other than those of the pair are variables of the chat template, such as `tools`.
  Conversation render(const PairJson& row, const PairJson& prompt, const PairJson& answer) const;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;  ///< null if the tokenizer's folder has none
  std::string end_;                     ///< eos_token
};

PairTokenizer::PairTokenizer(const DatasetSpec& spec) {
  of_the_document_job("dataset.tokenizer", [&] {
    tokenizer_ = open_tokenizer(spec.tokenizer);
    if (ChatTemplate::is_in(spec.tokenizer)) chat_ = std::make_unique<ChatTemplate>(ChatTemplate::open(spec.tokenizer));
    end_ = special_token_of(spec.tokenizer, "eos_token");
  });
}

/// Renders the prompt and the answer as one text, and marks the bytes of the answer.
Conversation PairTokenizer::render(const PairJson& row, const PairJson& prompt, const PairJson& answer) const {
  if (prompt.is_string() && answer.is_string()) {
    const std::string text = prompt.get<std::string>() + answer.get<std::string>() + end_;
    return {text, {{prompt.get<std::string>().size(), text.size()}}};
  }
  if (!prompt.is_array() || !answer.is_array())
    throw EnvError("prompt, chosen and rejected are neither all texts nor all lists of messages");
  if (!chat_) throw EnvError("has messages, but the tokenizer's folder has no chat template; add chat_template.jinja");
  PairJson asked = row;
  for (const char* field : {"prompt", "chosen", "rejected"}) asked.erase(field);
  asked["messages"] = prompt;
  PairJson answered = asked;
  for (const PairJson& message : answer) answered["messages"].push_back(message);
  const std::string before = chat_->render(asked, true), text = chat_->render(answered, false);
  if (text.starts_with(before)) return {text, {{before.size(), text.size()}}};
  // The template may render the prompt differently when an answer follows it. The answer therefore begins where its
  // message begins in the rendered whole.
  const auto is_assistant = [](const PairJson& m) {
    return m.is_object() && m.value("role", PairJson()) == "assistant";
  };
  const auto answers_in_prompt = static_cast<size_t>(std::ranges::count_if(prompt, is_assistant));
  const Conversation found = chat_->conversation(answered, true);
  if (answers_in_prompt >= found.assistant.size())
    throw EnvError("the chat template does not render the prompt in the same way when an answer follows it");
  return {found.text, {{found.assistant[answers_in_prompt].begin, found.text.size()}}};
}

MarkedTokens PairTokenizer::answer(const std::string& line, const char* name, WordCache& cache) const {
  const auto row = PairJson::parse(line, nullptr, false);
  if (!row.is_object()) throw EnvError("expected a JSON object");
  for (const char* field : {"chosen", "rejected"})
    if (!row.contains(field)) throw EnvError(std::string("has no field '") + field + "'");
  const PairJson &chosen = row["chosen"], &rejected = row["rejected"];
  const bool has_lists = chosen.is_array() && rejected.is_array();
  if (row.contains("prompt") && !(has_lists && row["prompt"].is_string()))
    return encode_marked(*tokenizer_, render(row, row["prompt"], row[name]), cache);
  if (has_lists) {  // which contain the prompt; a prompt that is a text repeats it
    const PairJson prompt = common_messages(chosen, rejected);
    return encode_marked(*tokenizer_, render(row, prompt, without_first(row[name], prompt.size())), cache);
  }
  if (!chosen.is_string() || !rejected.is_string())
    throw EnvError("chosen and rejected are neither both texts nor both lists of messages");
  const size_t begin = end_of_prompt(chosen.get<std::string>(), rejected.get<std::string>());
  const auto text = row[name].get<std::string>();
  return encode_marked(*tokenizer_, render(row, text.substr(0, begin), text.substr(begin)), cache);
}

std::vector<std::string> pair_files(const DatasetSpec& spec) { return list_table_files(spec.paths, "dataset.path"); }

/// Returns the tokens of all pairs. The tokenizer is opened only if the cache does not have the tokens.
TokenCache tokens_of_pairs(const DatasetSpec& spec, const DocumentIndex& index) {
  if (index.size() == 0) throw SpecError({}, "dataset.path", "the files contain no pairs");
  const std::string key = of_the_document_job("dataset.tokenizer", [&] {
    TokenKey parts(pair_files(spec), spec.tokenizer);
    parts.add(spec.type);
    return parts.text();
  });
  std::once_flag opened;
  std::optional<PairTokenizer> tokenizer;
  return of_the_document_job("dataset.path", [&] {
    return TokenCache(key, 2 * index.size(), [&](int64_t answer, WordCache& cache) {
      std::call_once(opened, [&] { tokenizer.emplace(spec); });
      const int64_t pair = answer / 2;
      try {
        return tokenizer->answer(index.read(pair), answer % 2 == 0 ? "chosen" : "rejected", cache);
      } catch (const EnvError& error) {
        throw EnvError(index.where(pair) + ": " + error.what());
      }
    });
  });
}

}  // namespace

DataShapes PreferenceSet::shapes_of(const DatasetSpec& spec) {
  DataShapes shapes = data_and_label({spec.length}, {}, true, true);
  shapes.fields.push_back({"targets", {spec.length}, true});
  shapes.fields.push_back({"documents", {spec.length}, true});
  return shapes;
}

PreferenceSet::PreferenceSet(const DatasetSpec& spec)
    : half_(spec.length / 2),
      index_(of_the_document_job("dataset.path", [&] { return DocumentIndex(pair_files(spec)); })),
      tokens_(tokens_of_pairs(spec, index_)),
      fields_(as_loaded(shapes_of(spec))) {}

void PreferenceSet::read(int64_t sample, ReadState& state, SampleOutputs to) const {
  const StageTimer timer(state.seconds, ReadStage::read);
  auto *data = static_cast<int32_t*>(to[0]), *targets = static_cast<int32_t*>(to[2]),
       *documents = static_cast<int32_t*>(to[3]);
  if (to[1] != nullptr) *static_cast<int32_t*>(to[1]) = 0;
  for (int64_t i = 0; documents != nullptr && i < 2 * half_; ++i)
    documents[i] = static_cast<int32_t>(i < half_ ? 0 : half_);
  if (data == nullptr && targets == nullptr) return;
  for (const int64_t answer : {0, 1}) {
    const DocumentTokens tokens = tokens_.document(2 * sample + answer);
    const int64_t begin = answer * half_, pairs = std::min(half_, tokens.size() - 1);
    for (int64_t i = 0; i < half_; ++i) {
      if (data != nullptr) data[begin + i] = i < pairs ? tokens.token(i) : 0;
      if (targets != nullptr)
        targets[begin + i] = i < pairs && tokens.is_trained(i + 1) ? tokens.token(i + 1) : kNoTrainedLabel;
    }
  }
}

PreferenceSet::Summary PreferenceSet::summarize() const {
  Summary summary;
  for (int64_t i = 0; i < size(); ++i) {
    const DocumentTokens chosen = tokens_.document(2 * i), rejected = tokens_.document(2 * i + 1);
    summary.truncated += std::max(chosen.size(), rejected.size()) - 1 > half_ ? 1 : 0;
    if (chosen.count_trained(1, half_ + 1) > 0 && rejected.count_trained(1, half_ + 1) > 0) continue;
    if (summary.untrained++ == 0) summary.first_untrained = where(i);
  }
  return summary;
}

}  // namespace trainctl
