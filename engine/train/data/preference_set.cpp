// See the header.
#include "engine/train/data/preference_set.h"

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/sources/file_list.h"

namespace trainctl {
namespace {

using PairJson = nlohmann::ordered_json;

/// The numbers begin with 1.
uint64_t next_number() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

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

/// Returns whether the positions of half a row contain no token of the answer.
bool trains_nothing(const MarkedTokens& tokens, int64_t half) {
  const auto end = std::min<int64_t>(static_cast<int64_t>(tokens.marked.size()), half + 1);
  return end < 2 || std::none_of(tokens.marked.begin() + 1, tokens.marked.begin() + end, [](bool m) { return m; });
}

}  // namespace

DataShapes PreferenceSet::shapes_of(const DatasetSpec& spec) {
  DataShapes shapes = data_and_label({spec.length}, {}, true, true);
  shapes.fields.push_back({"targets", {spec.length}, true});
  shapes.fields.push_back({"documents", {spec.length}, true});
  return shapes;
}

PreferenceSet::PreferenceSet(const DatasetSpec& spec)
    : number_(next_number()),
      half_(spec.length / 2),
      tokenizer_(of_the_document_job("dataset.tokenizer", [&] { return open_tokenizer(spec.tokenizer); })),
      index_(
          of_the_document_job("dataset.path", [&] { return DocumentIndex(list_files(spec.paths, "dataset.path")); })),
      fields_(as_loaded(shapes_of(spec))) {
  if (index_.size() == 0) throw SpecError({}, "dataset.path", "the files contain no pairs");
  if (ChatTemplate::is_in(spec.tokenizer))
    chat_ = of_the_document_job("dataset.tokenizer",
                                [&] { return std::make_unique<ChatTemplate>(ChatTemplate::open(spec.tokenizer)); });
  end_ = special_token_of(spec.tokenizer, "eos_token");
}

/// The prompt and the answer, of which the bytes of the answer are marked.
Conversation PreferenceSet::render(const PairJson& prompt, const PairJson& answer) const {
  if (prompt.is_string() && answer.is_string()) {
    const std::string text = prompt.get<std::string>() + answer.get<std::string>() + end_;
    return {text, {{prompt.get<std::string>().size(), text.size()}}};
  }
  if (!prompt.is_array() || !answer.is_array())
    throw EnvError("prompt, chosen and rejected are neither all texts nor all lists of messages");
  if (!chat_) throw EnvError("has messages, but the tokenizer's folder has no chat template; add chat_template.jinja");
  PairJson asked = PairJson::object(), answered = PairJson::object();
  asked["messages"] = prompt;
  answered["messages"] = prompt;
  for (const PairJson& message : answer) answered["messages"].push_back(message);
  const std::string before = chat_->render(asked, true), text = chat_->render(answered, false);
  if (!text.starts_with(before))
    throw EnvError("the chat template does not render the prompt in the same way with an answer behind it");
  return {text, {{before.size(), text.size()}}};
}

MarkedTokens PreferenceSet::answer(const PairJson& prompt, const PairJson& answer) const {
  thread_local WordCache cache;
  thread_local uint64_t owner = 0;  // a later set may have the address of an earlier one
  if (std::exchange(owner, number_) != number_) cache = WordCache();
  return encode_marked(*tokenizer_, render(prompt, answer), cache);
}

PreferenceSet::Pair PreferenceSet::pair(int64_t sample) const {
  try {
    const auto row = PairJson::parse(index_.read(sample), nullptr, false);
    if (!row.is_object()) throw EnvError("expected a JSON object");
    for (const char* field : {"chosen", "rejected"})
      if (!row.contains(field)) throw EnvError(std::string("has no field '") + field + "'");
    if (row.contains("prompt")) return {answer(row["prompt"], row["chosen"]), answer(row["prompt"], row["rejected"])};
    if (!row["chosen"].is_array() || !row["rejected"].is_array())
      throw EnvError("has no field 'prompt', which only lists of messages can do without");
    const PairJson prompt = common_messages(row["chosen"], row["rejected"]);
    return {answer(prompt, without_first(row["chosen"], prompt.size())),
            answer(prompt, without_first(row["rejected"], prompt.size()))};
  } catch (const EnvError& error) {
    throw EnvError(index_.where(sample) + ": " + error.what());
  }
}

void PreferenceSet::read(int64_t sample, ReadState& state, SampleOutputs to) const {
  const StageTimer timer(state.seconds, ReadStage::read);
  auto *data = static_cast<int32_t*>(to[0]), *targets = static_cast<int32_t*>(to[2]),
       *documents = static_cast<int32_t*>(to[3]);
  if (to[1] != nullptr) *static_cast<int32_t*>(to[1]) = 0;
  for (int64_t i = 0; documents != nullptr && i < 2 * half_; ++i)
    documents[i] = static_cast<int32_t>(i < half_ ? 0 : half_);
  if (data == nullptr && targets == nullptr) return;
  const Pair pair = this->pair(sample);
  for (const MarkedTokens* tokens : {&pair.chosen, &pair.rejected}) {
    const int64_t begin = tokens == &pair.chosen ? 0 : half_;
    const int64_t pairs = std::min<int64_t>(half_, static_cast<int64_t>(tokens->tokens.size()) - 1);
    for (int64_t i = 0; i < half_; ++i) {
      const auto at = static_cast<size_t>(i);
      if (data != nullptr) data[begin + i] = i < pairs ? tokens->tokens[at] : 0;
      if (targets != nullptr)
        targets[begin + i] = i < pairs && tokens->marked[at + 1] ? tokens->tokens[at + 1] : kNoTrainedLabel;
    }
  }
}

PreferenceSet::Summary PreferenceSet::summarize() const {
  Summary summary;
  for (int64_t i = 0; i < size(); ++i) {
    const Pair one = pair(i);
    const auto longest = std::max(one.chosen.tokens.size(), one.rejected.tokens.size());
    summary.truncated += static_cast<int64_t>(longest) - 1 > half_ ? 1 : 0;
    if (!trains_nothing(one.chosen, half_) && !trains_nothing(one.rejected, half_)) continue;
    if (summary.untrained++ == 0) summary.first_untrained = where(i);
  }
  return summary;
}

}  // namespace trainctl
