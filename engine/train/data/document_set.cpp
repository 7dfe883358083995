// See the header.
#include "engine/train/data/document_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/runtime/comm/event.h"
#include "engine/train/data/documents.h"
#include "engine/train/data/sources/file_list.h"

namespace trainctl {
namespace {

/// Calls `work(i)` for each i below `count` on the cores of this rank, and throws the error of the smallest i.
template <class Work>
void for_each_in_parallel(int64_t count, Work work) {
  std::atomic<int64_t> next = 0, failed = count;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  const auto run = [&] {
    for (int64_t i = next++; i < failed; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[static_cast<size_t>(i)] = std::current_exception();
        for (int64_t least = failed; i < least && !failed.compare_exchange_weak(least, i);) {
        }
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 1; t < comm::usable_cores(); ++t) threads.emplace_back(run);
    run();
  }
  if (failed < count) std::rethrow_exception(errors[static_cast<size_t>(failed)]);
}

}  // namespace

DocumentTokenizer::DocumentTokenizer(const DatasetSpec& spec)
    : field_(!spec.json_field.empty() ? spec.json_field
             : spec.type == "chat"    ? "messages"
                                      : "text"),
      only_assistant_(spec.train_on == "assistant") {
  of_the_document_job("dataset.tokenizer", [&] {
    tokenizer_ = open_tokenizer(spec.tokenizer);
    if (spec.type == "chat") chat_ = std::make_unique<ChatTemplate>(ChatTemplate::open(spec.tokenizer));
  });
}

MarkedTokens DocumentTokenizer::tokenize(const std::string& document, bool is_json, WordCache& cache) const {
  if (!chat_) {
    MarkedTokens result;
    tokenizer_->encode(text_of({document, "", is_json}, field_), true, cache, result.tokens);
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
    : number_([] {
        static std::atomic<int64_t> next = 0;
        return next++;
      }()),
      length_(spec.length),
      packs_(spec.pack),
      splits_(spec.type == "text"),
      tokenizer_(spec),
      index_(
          of_the_document_job("dataset.path", [&] { return DocumentIndex(list_files(spec.paths, "dataset.path")); })),
      fields_(as_loaded(shapes_of(spec))) {
  if (index_.size() == 0) throw SpecError({}, "dataset.path", "the files contain no documents");
  if (!packs_ && !splits_) return;
  const std::vector<int32_t> tokens = of_the_document_job("dataset.path", [&] { return count_tokens(); });
  std::vector<RowPart> parts;
  for (size_t d = 0; d < tokens.size(); ++d) {
    const int32_t pairs = tokens[d] - 1;
    for (int32_t begin = 0; begin < pairs; begin += static_cast<int32_t>(length_)) {
      parts.push_back({static_cast<int64_t>(d), begin, std::min(pairs - begin, static_cast<int32_t>(length_))});
      if (!splits_) break;
    }
  }
  if (parts.empty()) throw SpecError({}, "dataset.path", "no document has two tokens");
  if (packs_)
    rows_ = pack_rows(parts, length_);
  else
    for (const RowPart& part : parts) rows_.push_back({part});
}

std::vector<int32_t> DocumentSet::count_tokens() const {
  std::vector<int32_t> counts(static_cast<size_t>(index_.size()));
  for_each_in_parallel(index_.size(), [&](int64_t d) {
    counts[static_cast<size_t>(d)] = static_cast<int32_t>(document(d).tokens.size());
  });
  return counts;
}

/// A cache per thread. The tokens of another set would be wrong, so it is emptied when the thread reads one.
WordCache& DocumentSet::cache_of_thread() const {
  thread_local WordCache cache;
  thread_local int64_t owner = -1;
  if (std::exchange(owner, number_) != number_) cache = WordCache();
  return cache;
}

MarkedTokens DocumentSet::document(int64_t number) const {
  try {
    return tokenizer_.tokenize(index_.read(number), index_.is_json(number), cache_of_thread());
  } catch (const EnvError& error) {
    throw EnvError(index_.where(number) + ": " + error.what());
  }
}

int64_t DocumentSet::memory_bytes() const {
  int64_t bytes = index_.memory_bytes();
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
    const MarkedTokens tokens = document(part.document);
    const auto start = static_cast<int32_t>(at);
    const auto end = std::min<int64_t>(part.begin + part.count, static_cast<int64_t>(tokens.tokens.size()) - 1);
    for (auto i = static_cast<size_t>(part.begin); static_cast<int64_t>(i) < end; ++i, ++at) {
      if (data != nullptr) data[at] = tokens.tokens[i];
      if (label != nullptr) label[at] = tokens.marked[i + 1] ? tokens.tokens[i + 1] : kNoTrainedLabel;
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

void DocumentSet::expect(int64_t sample) const {
  for (const RowPart& part : parts_of_row(sample)) index_.expect(part.document);
}

std::string DocumentSet::where(int64_t sample) const {
  const std::vector<RowPart> parts = parts_of_row(sample);
  return index_.where(parts.front().document) +
         (parts.size() > 1 ? fmt::format(" and {} more", parts.size() - 1) : std::string());
}

DocumentSet::Summary DocumentSet::summarize() const {
  Summary summary{index_.size(), size(), size() * length_};
  std::vector<int32_t> trained(static_cast<size_t>(size()));
  std::atomic<int64_t> truncated = 0;
  for_each_in_parallel(size(), [&](int64_t row) {
    std::vector<int32_t> label(static_cast<size_t>(length_));
    ReadState state;
    std::vector<void*> to(fields_.size());
    to[1] = label.data();
    read(row, state, to);
    trained[static_cast<size_t>(row)] = static_cast<int32_t>(
        label.size() - static_cast<size_t>(std::count(label.begin(), label.end(), kNoTrainedLabel)));
    if (splits_) return;
    for (const RowPart& part : parts_of_row(row))
      truncated += static_cast<int64_t>(document(part.document).tokens.size()) - 1 > length_ ? 1 : 0;
  });
  summary.truncated = truncated;
  for (size_t row = 0; row < trained.size(); ++row) {
    summary.trained += trained[row];
    if (trained[row] > 0) continue;
    if (summary.untrained++ == 0) summary.first_untrained = where(static_cast<int64_t>(row));
  }
  return summary;
}

}  // namespace trainctl
