// See the header.
#include "engine/train/data/document_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"
#include "engine/train/data/documents.h"
#include "engine/train/data/sources/file_list.h"

namespace trainctl {
namespace {

const char* messages_or_text(const DatasetSpec& spec) { return spec.type == "chat" ? "messages" : "text"; }

/// Tokenizes one document of a set at a time.
class DocumentTokenizer {
 public:
  /// SpecError (dataset.tokenizer) if the tokenizer or the chat template cannot be read.
  explicit DocumentTokenizer(const DatasetSpec& spec);
  /// `marked`: the trained tokens. EnvError, without the place of the document, if it does not suit the set.
  MarkedTokens tokenize(const std::string& document, bool is_json, WordCache& cache) const;

 private:
  std::string field_;
  bool only_assistant_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;
};

DocumentTokenizer::DocumentTokenizer(const DatasetSpec& spec)
    : field_(spec.json_field.empty() ? messages_or_text(spec) : spec.json_field),
      only_assistant_(spec.train_on == "assistant") {
  of_the_document_job("dataset.tokenizer", [&] {
    tokenizer_ = open_tokenizer(spec.tokenizer);
    if (spec.type == "chat") chat_ = std::make_unique<ChatTemplate>(ChatTemplate::open(spec.tokenizer));
  });
}

MarkedTokens DocumentTokenizer::tokenize(const std::string& document, bool is_json, WordCache& cache) const {
  if (!chat_) {
    MarkedTokens result;
    tokenizer_->encode(text_of(RawDocument{document, "", is_json}, field_), true, cache, result.tokens);
    result.marked.assign(result.tokens.size(), true);
    return result;
  }
  auto row = nlohmann::ordered_json::parse(document, nullptr, false);
  if (!row.is_object()) throw EnvError("expected a JSON object");
  if (!row.contains(field_) || !row[field_].is_array())
    throw EnvError("has no list of messages in the field '" + field_ + "'; name another with dataset.field");
  if (field_ != "messages") row["messages"] = row[field_];
  const Conversation conversation = chat_->conversation(row, only_assistant_);
  MarkedTokens result = encode_marked(*tokenizer_, conversation, cache);
  if (!only_assistant_) result.marked.assign(result.tokens.size(), true);
  return result;
}

std::vector<std::string> document_files(const DatasetSpec& spec) {
  return list_table_files(spec.paths, "dataset.path");
}

/// The tokenizer is opened only if the cache does not have the tokens.
TokenCache tokens_of_documents(const DatasetSpec& spec, const DocumentIndex& index) {
  if (index.size() == 0) throw SpecError({}, "dataset.path", "the files contain no documents");
  const std::string key = of_the_document_job("dataset.tokenizer", [&] {
    TokenKey parts(document_files(spec), spec.tokenizer);
    for (const std::string& setting : {spec.type, spec.json_field, spec.train_on}) parts.add(setting);
    return parts.text();
  });
  std::once_flag opened;
  std::optional<DocumentTokenizer> tokenizer;
  return of_the_document_job("dataset.path", [&] {
    return TokenCache(key, index.size(), [&](int64_t document, WordCache& cache) {
      std::call_once(opened, [&] { tokenizer.emplace(spec); });
      try {
        return tokenizer->tokenize(index.read(document), index.is_json(document), cache);
      } catch (const EnvError& error) {
        throw EnvError(index.where(document) + ": " + error.what());
      }
    });
  });
}

}  // namespace

std::vector<std::vector<RowPart>> pack_rows(const std::vector<RowPart>& parts, int64_t length) {
  std::vector<size_t> order(parts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return parts[a].count > parts[b].count; });
  std::multimap<int64_t, size_t> by_room;  // rows by their room
  std::vector<std::vector<size_t>> rows;
  for (const size_t i : order) {
    auto found = by_room.lower_bound(parts[i].count);
    size_t row = rows.size();
    int64_t room = length;
    if (found == by_room.end()) {
      rows.emplace_back();
    } else {
      std::tie(room, row) = *found;
      by_room.erase(found);
    }
    rows[row].push_back(i);
    if (room > parts[i].count) by_room.emplace(room - parts[i].count, row);
  }
  for (auto& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  std::vector<std::vector<RowPart>> result;
  for (const auto& row : rows)
    for (std::vector<RowPart>& to = result.emplace_back(); const size_t i : row) to.push_back(parts[i]);
  return result;
}

DataShapes DocumentSet::shapes_of(const DatasetSpec& spec) {
  DataShapes shapes = data_and_label({spec.length}, {spec.length}, true, true);
  if (spec.pack) shapes.fields.push_back({"documents", {spec.length}, true});
  return shapes;
}

DocumentSet::DocumentSet(const DatasetSpec& spec)
    : length_(spec.length),
      packs_(spec.pack),
      splits_(spec.type == "text"),
      index_(of_the_document_job("dataset.path", [&] { return DocumentIndex(document_files(spec)); })),
      tokens_(tokens_of_documents(spec, index_)),
      fields_(as_loaded(shapes_of(spec))) {
  if (!packs_ && !splits_) return;
  std::vector<RowPart> parts;
  for (int64_t d = 0; d < tokens_.size(); ++d) {
    const auto pairs = static_cast<int32_t>(tokens_.document(d).size() - 1);
    for (int32_t begin = 0; begin < pairs; begin += static_cast<int32_t>(length_)) {
      parts.push_back({d, begin, std::min(pairs - begin, static_cast<int32_t>(length_))});
      if (!splits_) break;
    }
  }
  if (parts.empty()) throw SpecError({}, "dataset.path", "no document has two tokens");
  if (packs_)
    rows_ = pack_rows(parts, length_);
  else
    for (const RowPart& part : parts) rows_.push_back({part});
}

int64_t DocumentSet::memory_bytes() const {
  int64_t bytes = index_.memory_bytes() + tokens_.memory_bytes();
  for (const auto& row : rows_) bytes += static_cast<int64_t>(sizeof(row) + row.size() * sizeof(RowPart));
  return bytes;
}

int64_t DocumentSet::size() const { return rows_.empty() ? index_.size() : static_cast<int64_t>(rows_.size()); }

std::vector<RowPart> DocumentSet::parts_of_row(int64_t row) const {
  if (!rows_.empty()) return rows_[static_cast<size_t>(row)];
  return {{row, 0, static_cast<int32_t>(length_)}};
}

void DocumentSet::read(int64_t sample, ReadState& state, SampleOutputs to) const {
  const StageTimer timer(state.seconds, ReadStage::read);
  auto* data = static_cast<int32_t*>(to[0]);
  auto* label = static_cast<int32_t*>(to[1]);
  auto* starts = packs_ ? static_cast<int32_t*>(to[2]) : nullptr;
  int64_t at = 0;
  for (const RowPart& part : parts_of_row(sample)) {
    const DocumentTokens tokens = tokens_.document(part.document);
    const auto start = static_cast<int32_t>(at);
    const int64_t end = std::min<int64_t>(part.begin + part.count, tokens.size() - 1);
    for (int64_t i = part.begin; i < end; ++i, ++at) {
      if (data != nullptr) data[at] = tokens.token(i);
      if (label != nullptr) label[at] = tokens.is_trained(i + 1) ? tokens.token(i + 1) : kNoTrainedLabel;
      if (starts != nullptr) starts[at] = start;
    }
  }
  const auto rest = static_cast<int32_t>(at);
  for (; at < length_; ++at) {
    if (data != nullptr) data[at] = 0;
    if (label != nullptr) label[at] = kNoTrainedLabel;
    if (starts != nullptr) starts[at] = rest;
  }
}

std::string DocumentSet::where(int64_t sample) const {
  const std::vector<RowPart> parts = parts_of_row(sample);
  return index_.where(parts.front().document) +
         (parts.size() > 1 ? fmt::format(" and {} more", parts.size() - 1) : std::string());
}

DocumentSet::Summary DocumentSet::summarize() const {
  Summary summary{index_.size(), size(), size() * length_};
  for (int64_t row = 0; row < size(); ++row) {
    int64_t trained = 0;  // the label of position i is token i + 1
    for (const RowPart& part : parts_of_row(row))
      trained += tokens_.document(part.document).count_trained(part.begin + 1, part.begin + part.count + 1);
    summary.trained += trained;
    summary.untrained_rows += trained == 0 ? 1 : 0;
  }
  for (int64_t d = 0; d < index_.size(); ++d) {
    const DocumentTokens tokens = tokens_.document(d);
    const bool is_truncated = !splits_ && tokens.size() - 1 > length_;
    summary.truncated += is_truncated ? 1 : 0;
    if (tokens.count_trained(1, is_truncated ? length_ + 1 : tokens.size()) > 0) continue;
    if (tokens.count_trained(1, tokens.size()) > 0) ++summary.cut_off;
    if (summary.untrained++ == 0) summary.first_untrained = index_.where(d);
  }
  return summary;
}

}  // namespace trainctl
