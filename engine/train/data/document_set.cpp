// Rows of documents: conversations (dataset.type chat) or texts (type text with a tokenizer), whose tokens are in the
// host's cache (token_cache.h).
#include "engine/train/data/document_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "engine/spec/expression.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"
#include "engine/train/data/document_adapters.h"
#include "engine/train/data/documents.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/files/digest.h"

namespace trainctl {
namespace {

const char* messages_or_text(const DatasetSpec& spec) { return spec.type == "chat" ? "messages" : "text"; }

/// Tokenizes one document of a set at a time.
class DocumentTokenizer {
 public:
  /// Throws SpecError (dataset.tokenizer) if the tokenizer or the chat template cannot be read.
  explicit DocumentTokenizer(const DatasetSpec& spec);
  /// Tokenizes a document and marks the tokens that are trained. Throws EnvError, without the place of the document, if
  /// the document does not suit the set.
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
    tokenizer_->encode(text_of(RawDocument{document, "", is_json}, field_, "dataset.field"), true, cache,
                       result.tokens);
    result.marked.assign(result.tokens.size(), true);
    return result;
  }
  auto row = nlohmann::ordered_json::parse(document, nullptr, false);
  if (!row.is_object()) throw EnvError("expected a JSON object");
  const nlohmann::ordered_json* const messages = find_document_field(row, field_);
  if (messages == nullptr || !messages->is_array())
    throw EnvError("has no list of messages in the field '" + field_ + "'; name another with dataset.field");
  if (field_ != "messages") row["messages"] = nlohmann::ordered_json(*messages);
  const Conversation conversation = chat_->conversation(row, only_assistant_);
  MarkedTokens result = encode_marked(*tokenizer_, conversation, cache);
  if (!only_assistant_) result.marked.assign(result.tokens.size(), true);
  return result;
}

std::vector<std::string> document_files(const DatasetSpec& spec) {
  return list_table_files(spec.paths, "dataset.path");
}

/// The columns of tables from which documents are made. Empty means all columns, because a filter or a chat template
/// may read any.
std::vector<std::string> columns_of(const DatasetSpec& spec) {
  if (spec.type != "text" || !spec.filter.empty()) return {};
  std::vector<std::string> columns =
      columns_of_field(spec.json_field.empty() ? messages_or_text(spec) : spec.json_field);
  if (spec.has_adapters()) columns.push_back(spec.adapter_field);
  return columns;
}

/// Adds the scalar fields of an object. A field of an object within it gets the name outer_inner.
void add_fields(const nlohmann::json& object, const std::string& prefix, Names& names) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + key;
    if (value.is_object()) add_fields(value, name + "_", names);
    if (!is_var_name(name)) continue;
    if (value.is_boolean()) names.insert_or_assign(name, value.get<bool>());
    if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)
      names.insert_or_assign(name, value.get<double>());
    else if (value.is_number_integer())
      names.insert_or_assign(name, value.get<int64_t>());
    if (value.is_number_float()) names.insert_or_assign(name, value.get<double>());
    if (value.is_string()) names.insert_or_assign(name, value.get<std::string>());
  }
}

/// Returns whether dataset.filter is true for a document. Throws SpecError (dataset.filter), which names the document.
bool passes(const std::string& filter, const std::string& document, bool is_json, int64_t tokens,
            const std::string& where) {
  Names names;
  if (is_json)
    if (const auto json = nlohmann::json::parse(document, nullptr, false); json.is_object())
      add_fields(json, "", names);
  names.insert_or_assign("tokens", tokens);
  names.insert_or_assign("bytes", static_cast<int64_t>(document.size()));
  try {
    const Constant value = evaluate(filter, names);
    if (const bool* decided = std::get_if<bool>(&value)) return *decided;
    throw SpecError({}, "dataset.filter", where + ": the filter gives " + kind_of(value) + ", not true or false",
                    "e.g. tokens >= 64");
  } catch (const ExpressionError& error) {
    std::vector<std::string> known;
    for (const auto& [name, value] : names) known.push_back(name);
    throw SpecError({}, "dataset.filter", where + ": " + error.message,
                    error.unknown.empty() ? error.hint : "the document has " + join(known));
  }
}

/// Returns the tokens of all documents. The tokenizer is opened only if the cache does not have the tokens.
TokenCache tokens_of_documents(const DatasetSpec& spec, const DocumentIndex& index) {
  if (index.size() == 0) throw SpecError({}, "dataset.path", "the files contain no documents");
  const std::string key = of_the_document_job("dataset.tokenizer", [&] {
    TokenKey parts(document_files(spec), spec.tokenizer);
    for (const std::string& setting : {spec.type, spec.json_field, spec.train_on}) parts.add(setting);
    if (!spec.filter.empty()) parts.add("filter " + spec.filter);
    return parts.text();
  });
  std::once_flag opened;
  std::optional<DocumentTokenizer> tokenizer;
  return of_the_document_job("dataset.path", [&] {
    return TokenCache(key, index.size(), [&](int64_t document, WordCache& cache) {
      std::call_once(opened, [&] { tokenizer.emplace(spec); });
      try {
        const std::string text = index.read(document);
        const bool is_json = index.is_json(document);
        MarkedTokens tokens = tokenizer->tokenize(text, is_json, cache);
        if (!spec.filter.empty() &&
            !passes(spec.filter, text, is_json, static_cast<int64_t>(tokens.tokens.size()), index.where(document)))
          tokens = {};
        return tokens;
      } catch (const EnvError& error) {
        throw EnvError(index.where(document) + ": " + error.what());
      }
    });
  });
}

}  // namespace

std::vector<std::vector<DocumentPart>> pack_rows(const std::vector<DocumentPart>& parts, int64_t length) {
  std::vector<size_t> order(parts.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parts[a].positions() > parts[b].positions(); });
  std::multimap<int64_t, size_t> by_room;  // The rows by the room that they have left.
  std::vector<std::vector<size_t>> rows;
  for (const size_t i : order) {
    auto found = by_room.lower_bound(parts[i].positions());
    size_t row = rows.size();
    int64_t room = length;
    if (found == by_room.end()) {
      rows.emplace_back();
    } else {
      std::tie(room, row) = *found;
      by_room.erase(found);
    }
    rows[row].push_back(i);
    if (room > parts[i].positions()) by_room.emplace(room - parts[i].positions(), row);
  }
  for (auto& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  std::vector<std::vector<DocumentPart>> result;
  for (const auto& row : rows)
    for (std::vector<DocumentPart>& to = result.emplace_back(); const size_t i : row) to.push_back(parts[i]);
  return result;
}

std::vector<std::vector<DocumentPart>> pack_in_order(const std::vector<DocumentPart>& parts, int64_t length) {
  std::vector<std::vector<DocumentPart>> rows;
  int64_t room = 0;
  for (const DocumentPart& part : parts) {
    if (rows.empty() || part.positions() > room) {
      rows.emplace_back();
      room = length;
    }
    rows.back().push_back(part);
    room -= part.positions();
  }
  return rows;
}

std::vector<std::vector<DocumentPart>> concatenate(const std::vector<DocumentPart>& parts, int64_t length) {
  std::vector<std::vector<DocumentPart>> rows;
  int64_t room = 0;
  for (DocumentPart part : parts) {
    check(part.added == 0, "a part that is cut has only tokens of its document");
    while (part.count > 0) {
      if (room == 0) {
        rows.emplace_back();
        room = length;
      }
      DocumentPart piece = part;
      piece.count = static_cast<int32_t>(std::min<int64_t>(room, part.count));
      rows.back().push_back(piece);
      room -= piece.count;
      part.begin += piece.count;
      part.count -= piece.count;
    }
  }
  return rows;
}

std::vector<int32_t> rearranged(std::span<const int32_t> tokens, const FimTokens& marks, const FimCuts& cuts) {
  const std::span<const int32_t> text =
      tokens.subspan(static_cast<size_t>(marks.front),
                     tokens.size() - static_cast<size_t>(marks.front) - static_cast<size_t>(marks.back));
  const auto first = static_cast<size_t>(cuts.first), second = static_cast<size_t>(cuts.second);
  const std::span<const int32_t> prefix = text.first(first), middle = text.subspan(first, second - first),
                                 suffix = text.subspan(second);
  std::vector<int32_t> result;
  result.reserve(tokens.size() + 3);
  const auto add = [&](std::span<const int32_t> part) { result.insert(result.end(), part.begin(), part.end()); };
  add(tokens.first(static_cast<size_t>(marks.front)));
  result.push_back(marks.prefix);
  if (!cuts.suffix_first) add(prefix);
  result.push_back(marks.suffix);
  add(suffix);
  result.push_back(marks.middle);
  if (cuts.suffix_first) add(prefix);
  add(middle);
  add(tokens.last(static_cast<size_t>(marks.back)));
  return result;
}

namespace {

constexpr int32_t kFimMarks = 3;

/// The names by which known models call the tokens before the prefix, the suffix and the middle.
const std::vector<std::array<const char*, 3>> kKnownFimTokens = {
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, {"<PRE>", "<SUF>", "<MID>"},
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"},
};

/// The tokens for fill-in-the-middle: those that the job names, or the first known names that the tokenizer has. Also
/// finds how many tokens the tokenizer adds before and after a text.
FimTokens fim_tokens_of(const DatasetSpec& spec) {
  const auto tokenizer = of_the_document_job("dataset.tokenizer", [&] { return open_tokenizer(spec.tokenizer); });
  std::vector<std::array<std::string, 3>> candidates;
  if (spec.fim_tokens.size() == 3)
    candidates.push_back({spec.fim_tokens[0], spec.fim_tokens[1], spec.fim_tokens[2]});
  else
    for (const auto& known : kKnownFimTokens) candidates.push_back({known[0], known[1], known[2]});
  FimTokens tokens;
  bool is_found = false;
  for (const auto& names : candidates) {
    const auto prefix = tokenizer->find(names[0]), suffix = tokenizer->find(names[1]),
               middle = tokenizer->find(names[2]);
    if (!prefix || !suffix || !middle) continue;
    tokens = {*prefix, *suffix, *middle};
    is_found = true;
    break;
  }
  if (!is_found && !spec.fim_tokens.empty())
    throw SpecError({}, "dataset.fim_tokens",
                    fmt::format("the tokenizer does not have all of {}", fmt::join(spec.fim_tokens, ", ")),
                    "name three tokens of its vocabulary");
  if (!is_found)
    throw SpecError({}, "dataset.fim", "the tokenizer has no known tokens for fill-in-the-middle",
                    "name three tokens of its vocabulary: fim_tokens: [<fim_prefix>, <fim_suffix>, <fim_middle>]");
  const std::vector<int32_t> plain = tokenizer->encode("a", false), whole = tokenizer->encode("a", true);
  const auto at = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  if (at != whole.end()) {
    tokens.front = static_cast<int32_t>(at - whole.begin());
    tokens.back = static_cast<int32_t>(whole.size() - plain.size()) - tokens.front;
  }
  return tokens;
}

}  // namespace

DataShapes DocumentSet::shapes_of(const DatasetSpec& spec) {
  DataShapes shapes = data_and_label({spec.length}, {spec.length}, true, true);
  if (spec.pack) shapes.fields.push_back({"documents", {spec.length}, true});
  // Documents of several adapters may share a row.
  if (spec.has_adapters())
    shapes.fields.push_back({spec.adapter_field, spec.pack ? Shape{spec.length} : Shape{}, true});
  return shapes;
}

DocumentSet::DocumentSet(const DatasetSpec& spec, uint64_t seed)
    : length_(spec.length),
      packs_(spec.pack),
      splits_(spec.type == "text"),
      index_(
          of_the_document_job("dataset.path", [&] { return DocumentIndex(document_files(spec), columns_of(spec)); })),
      tokens_(tokens_of_documents(spec, index_)),
      fields_(as_loaded(shapes_of(spec))),
      packing_(spec.packing),
      filter_(spec.filter),
      deduplicates_(spec.deduplicate),
      fim_(spec.fim),
      fim_spm_(spec.fim_spm),
      fim_key_(stream_key(seed, stable_hash("dataset.fim"))) {
  const std::vector<bool> used = find_used(spec);
  adapters_ = adapters_of_documents(spec, index_, used);
  if (fim_ > 0) fim_tokens_ = fim_tokens_of(spec);
  if (!packs_ && !splits_ && used.empty()) return;
  const std::vector<DocumentPart> parts = make_parts(used);
  if (parts.empty())
    throw SpecError({}, filter_.empty() ? "dataset.path" : "dataset.filter",
                    filter_.empty()
                        ? "no document has two tokens"
                        : "no document with at least two tokens passes the filter, so there are no samples");
  if (packs_)
    rows_ = packing_ == "in_order"      ? pack_in_order(parts, length_)
            : packing_ == "concatenate" ? concatenate(parts, length_)
                                        : pack_rows(parts, length_);
  else
    for (const DocumentPart& part : parts) rows_.push_back({part});
}

/// For each document, whether it is neither filtered out nor a duplicate. Empty: all documents are used.
std::vector<bool> DocumentSet::find_used(const DatasetSpec& spec) {
  if (spec.filter.empty() && !spec.deduplicate) return {};
  std::vector<bool> used(static_cast<size_t>(tokens_.size()), true);
  std::unordered_set<std::string> known;
  for (int64_t d = 0; d < tokens_.size(); ++d) {
    const std::span<const uint32_t> words = tokens_.document(d).words();
    const auto at = static_cast<size_t>(d);
    if (!spec.filter.empty() && words.empty()) {
      used[at] = false;
      ++filtered_;
    } else if (spec.deduplicate) {
      Digest digest;
      digest.add({reinterpret_cast<const uint8_t*>(words.data()), words.size_bytes()});
      used[at] = known.insert(digest.digits()).second;
      if (!used[at]) ++duplicates_;
    }
  }
  return used;
}

std::vector<DocumentPart> DocumentSet::make_parts(const std::vector<bool>& used) const {
  std::vector<DocumentPart> parts;
  const bool cuts_rows = packs_ && packing_ == "concatenate";
  for (int64_t d = 0; d < tokens_.size(); ++d) {
    if (!used.empty() && !used[static_cast<size_t>(d)]) continue;
    const auto pairs = static_cast<int32_t>(tokens_.document(d).size() - 1);
    const int32_t added = is_rearranged(d) ? kFimMarks : 0;
    const auto most = static_cast<int32_t>(cuts_rows ? std::max<int64_t>(pairs, 1) : length_ - added);
    for (int32_t begin = 0; begin < pairs; begin += most) {
      parts.push_back({d, begin, std::min(pairs - begin, most), added});
      if (!splits_) break;
    }
  }
  return parts;
}

/// Returns whether a document is rearranged for fill-in-the-middle. Documents that have fewer tokens than there are
/// parts are not.
bool DocumentSet::is_rearranged(int64_t document) const {
  if (fim_ <= 0 || tokens_.document(document).size() < fim_tokens_.front + fim_tokens_.back + kFimMarks) return false;
  const auto number = static_cast<uint64_t>(document);
  return static_cast<double>(philox(fim_key_, number >> 2, 0).v[number & 3]) * 0x1p-32 < fim_;
}

void DocumentSet::read_rearranged(const DocumentPart& part, ReadState& state, int32_t* data, int32_t* label) const {
  const DocumentTokens tokens = tokens_.document(part.document);
  std::vector<int32_t> own(static_cast<size_t>(part.count) + 1);
  for (size_t i = 0; i < own.size(); ++i) own[i] = tokens.token(part.begin + static_cast<int64_t>(i));
  FimTokens marks = fim_tokens_;
  if (part.begin > 0) marks.front = 0;
  if (part.begin + part.count + 1 < tokens.size()) marks.back = 0;
  const int64_t size = std::max<int64_t>(0, static_cast<int64_t>(own.size()) - marks.front - marks.back);
  if (static_cast<int64_t>(own.size()) < marks.front + marks.back) marks.front = marks.back = 0;
  FimCuts cuts;
  const int64_t a = state.rng.integer(size + 1), b = state.rng.integer(size + 1);
  cuts.first = std::min(a, b);
  cuts.second = std::max(a, b);
  cuts.suffix_first = state.rng.uniform() < fim_spm_;
  const std::vector<int32_t> all = rearranged(own, marks, cuts);
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    if (data != nullptr) data[i] = all[i];
    if (label != nullptr) label[i] = all[i + 1];
  }
}

std::vector<int32_t> DocumentSet::lengths() const {
  std::vector<int32_t> lengths;
  lengths.reserve(static_cast<size_t>(size()));
  for (int64_t row = 0; row < size(); ++row) {
    const std::vector<DocumentPart> parts = parts_of_row(row);
    int64_t positions = 0;
    for (const DocumentPart& part : parts)
      positions += std::min<int64_t>(part.positions(), tokens_.document(part.document).size() - 1 + part.added);
    lengths.push_back(static_cast<int32_t>(positions / static_cast<int64_t>(parts.size())));
  }
  return lengths;
}

double DocumentSet::tokens_per_sample() const {
  double positions = 0;
  for (int64_t row = 0; row < size(); ++row)
    for (const DocumentPart& part : parts_of_row(row))
      positions += static_cast<double>(std::max<int64_t>(
          0, std::min<int64_t>(part.positions(), tokens_.document(part.document).size() - 1 + part.added)));
  return positions / static_cast<double>(std::max<int64_t>(1, size()));
}

std::vector<std::string> DocumentSet::notes() const {
  std::vector<std::string> notes;
  const auto left_out = [&](int64_t count, const char* why) {
    notes.push_back(fmt::format("{} of {} documents {} left out by {}", with_commas(count), with_commas(index_.size()),
                                count == 1 ? "is" : "are", why));
  };
  if (!filter_.empty()) left_out(filtered_, "dataset.filter");
  if (deduplicates_) left_out(duplicates_, "dataset.deduplicate");
  if (packs_ && packing_ != "best_fit")
    notes.push_back(fmt::format("packing {}: {:.1f} % of the positions of {} rows are used", packing_,
                                100 * tokens_per_sample() / static_cast<double>(length_), with_commas(size())));
  if (fim_ > 0) {
    int64_t count = 0;
    for (int64_t d = 0; d < tokens_.size(); ++d) count += is_rearranged(d) ? 1 : 0;
    notes.push_back(
        fmt::format("{} of {} documents are rearranged for fill-in-the-middle, {:g} % of them with the "
                    "suffix first",
                    with_commas(count), with_commas(index_.size()), 100 * fim_spm_));
  }
  return notes;
}

int64_t DocumentSet::memory_bytes() const {
  int64_t bytes = index_.memory_bytes() + tokens_.memory_bytes();
  for (const auto& row : rows_) bytes += static_cast<int64_t>(sizeof(row) + row.size() * sizeof(DocumentPart));
  return bytes;
}

int64_t DocumentSet::size() const { return rows_.empty() ? index_.size() : static_cast<int64_t>(rows_.size()); }

std::vector<DocumentPart> DocumentSet::parts_of_row(int64_t row) const {
  if (!rows_.empty()) return rows_[static_cast<size_t>(row)];
  return {{row, 0, static_cast<int32_t>(length_)}};
}

void DocumentSet::read(int64_t sample, ReadState& state, SampleOutputs to) const {
  const StageTimer timer(state.seconds, ReadStage::read);
  auto* data = static_cast<int32_t*>(to[0]);
  auto* label = static_cast<int32_t*>(to[1]);
  auto* starts = packs_ ? static_cast<int32_t*>(to[2]) : nullptr;
  auto* adapters = adapters_.empty() ? nullptr : static_cast<int32_t*>(to[packs_ ? 3 : 2]);
  int64_t at = 0;
  for (const DocumentPart& part : parts_of_row(sample)) {
    const DocumentTokens tokens = tokens_.document(part.document);
    const auto start = static_cast<int32_t>(at);
    if (adapters != nullptr)  // The next part, and the rest of the row, overwrite the values after this part.
      std::fill(adapters + (packs_ ? at : 0), adapters + (packs_ ? length_ : 1), adapter_of(part.document));
    if (part.added > 0) {
      read_rearranged(part, state, data == nullptr ? nullptr : data + at, label == nullptr ? nullptr : label + at);
      for (int64_t i = 0; i < part.positions(); ++i, ++at)
        if (starts != nullptr) starts[at] = start;
      continue;
    }
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
  const std::vector<DocumentPart> parts = parts_of_row(sample);
  return index_.where(parts.front().document) +
         (parts.size() > 1 ? fmt::format(" and {} more", parts.size() - 1) : std::string());
}

DocumentSet::Summary DocumentSet::summarize() const {
  Summary summary{index_.size(), size(), size() * length_};
  for (int64_t row = 0; row < size(); ++row) {
    int64_t trained = 0;  // the label of position i is token i + 1
    for (const DocumentPart& part : parts_of_row(row))
      trained +=
          tokens_.document(part.document).count_trained(part.begin + 1, part.begin + part.count + 1) + part.added;
    summary.trained += trained;
    summary.untrained_rows += trained == 0 ? 1 : 0;
  }
  for (int64_t d = 0; d < index_.size(); ++d) {
    const DocumentTokens tokens = tokens_.document(d);
    if (!filter_.empty() && tokens.size() == 0) continue;  // The filter has left the document out.
    const bool is_truncated = !splits_ && tokens.size() - 1 > length_;
    summary.truncated += is_truncated ? 1 : 0;
    if (tokens.count_trained(1, is_truncated ? length_ + 1 : tokens.size()) > 0) continue;
    if (tokens.count_trained(1, tokens.size()) > 0) ++summary.cut_off;
    if (summary.untrained++ == 0) summary.first_untrained = index_.where(d);
  }
  return summary;
}

}  // namespace trainctl
