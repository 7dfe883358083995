// Byte-pair encoding: which pairs of tokens merge, in which order, and the merging of a sequence.
#include "engine/text/bpe_model.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "engine/text/byte_alphabet.h"
#include "engine/text/token_model.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr std::string_view kUnderline = "\xE2\x96\x81";  // SentencePiece's space

/// Merges a short sequence: searches the whole list for the pair of the lowest rank in each round.
void merge_short(const MergeTable& merges, std::vector<int32_t>& tokens, size_t first) {
  constexpr size_t kMost = 64;
  uint32_t ranks[kMost];
  int32_t results[kMost];
  size_t count = tokens.size() - first;
  int32_t* ids = tokens.data() + first;
  const auto look_up = [&](size_t i) {
    const auto* merge = i + 1 < count ? merges.find(ids[i], ids[i + 1]) : nullptr;
    ranks[i] = merge != nullptr ? merge->rank : kNoRank;
    results[i] = merge != nullptr ? merge->token : 0;
  };
  for (size_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + count - 1) - ranks);
    if (ranks[best] == kNoRank) break;
    ids[best] = results[best];
    --count;
    std::copy(ids + best + 2, ids + count + 1, ids + best + 1);
    std::copy(ranks + best + 2, ranks + count + 1, ranks + best + 1);
    std::copy(results + best + 2, results + count + 1, results + best + 1);
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  tokens.resize(first + count);
}

/// Merges a long sequence with a linked list of tokens and a priority queue of pairs.
void merge_long(const MergeTable& merges, std::vector<int32_t>& tokens, size_t first) {
  struct Symbol {
    int32_t id;
    int64_t previous, next;
    bool alive = true;
  };
  struct Candidate {
    uint32_t rank;
    int64_t at;
    int32_t token;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto count = static_cast<int64_t>(tokens.size() - first);
  std::vector<Symbol> symbols;
  for (int64_t i = 0; i < count; ++i)
    symbols.push_back({tokens[first + static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  const auto symbol = [&](int64_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](int64_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    if (const auto* merge = merges.find(symbol(at).id, symbol(symbol(at).next).id))
      queue.push({merge->rank, at, merge->token});
  };
  for (int64_t i = 0; i + 1 < count; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.at);
    if (!left.alive || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const auto* merge = merges.find(left.id, right.id);
    if (merge == nullptr || merge->token != best.token || merge->rank != best.rank) continue;
    left.id = merge->token;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    propose(left.previous);
    propose(best.at);
  }
  tokens.resize(first);
  for (int64_t at = 0; at >= 0 && at < count; at = symbol(at).next) tokens.push_back(symbol(at).id);
}

class Bpe final : public TokenModel {
 public:
  explicit Bpe(const JsonPart& part)
      : TokenModel(read_vocabulary(part.at("vocab"))),
        prefix_(part.text("continuing_subword_prefix")),
        suffix_(part.text("end_of_word_suffix")),
        fuses_unknown_(part.boolean("fuse_unk", false)),
        whole_words_(part.boolean("ignore_merges", false)),
        merges_(part.at("merges").value().size()) {
    if (part.has("dropout") && part.at("dropout").number() != 0)
      part.at("dropout").fail(
          "dropout is not supported, because the same text must give the same tokens; set it to null");
    if (part.boolean("byte_fallback", false)) bytes_ = find_byte_tokens(vocabulary_);
    if (part.has("unk_token")) {
      unknown_ = vocabulary_.find(part.at("unk_token").text());
      if (!unknown_) part.at("unk_token").fail("'" + part.at("unk_token").text() + "' is not in the vocabulary");
    }
    read_merges(part.at("merges"));
    cuts_at_underlines_ = find_cuts();
  }

  bool take_bytes() override {
    if (!prefix_.empty() || !suffix_.empty() || bytes_) return false;
    for (size_t byte = 0; byte < 256; ++byte)
      if (!(byte_ids_[byte] = vocabulary_.find(byte_characters()[byte]))) return false;
    for (const auto& [text, id] : vocabulary_.ids())
      if (auto bytes = whole_words_ ? to_bytes(text) : std::nullopt) words_.add(*bytes, id);
    takes_bytes_ = true;
    return true;
  }

  void tokenize(std::string_view piece, WordCache& cache, std::vector<int32_t>& to) const override {
    if (!cuts_at_underlines_) return tokenize_part(piece, cache, to);
    // No merge crosses an underline that follows another character.
    for (size_t begin = 0; begin < piece.size();) {
      size_t end = begin;
      while (end < piece.size() && piece.substr(end).starts_with(kUnderline)) end += kUnderline.size();
      end = std::min(piece.find(kUnderline, end), piece.size());
      tokenize_part(piece.substr(begin, end - begin), cache, to);
      begin = end;
    }
  }

 private:
  void tokenize_part(std::string_view word, WordCache& cache, std::vector<int32_t>& to) const {
    if (const auto* known = cache.find(word)) {
      to.insert(to.end(), known->ids, known->ids + known->count);
      return;
    }
    const size_t before = to.size();
    const auto whole = whole_words_ ? (takes_bytes_ ? words_ : vocabulary_).find(word) : std::nullopt;
    if (whole) {
      to.push_back(*whole);
    } else {
      if (takes_bytes_)
        for (const char c : word) to.push_back(*byte_ids_[static_cast<unsigned char>(c)]);
      else
        append_characters(word, to);
      merge_tokens(merges_, to, before);
    }
    cache.add(word, std::span(to).subspan(before));
  }

  void append_characters(std::string_view word, std::vector<int32_t>& to) const {
    bool is_pending = false;  // an unknown token that another unknown character may join
    std::string text;
    for (size_t at = 0; at < word.size();) {
      const size_t length = code_point(word, at).bytes;
      text.assign(at > 0 ? prefix_ : std::string());
      text += word.substr(at, length);
      at += length;
      if (at == word.size()) text += suffix_;
      if (const auto id = vocabulary_.find(text)) {
        if (std::exchange(is_pending, false)) to.push_back(*unknown_);
        to.push_back(*id);
      } else if (!append_bytes(text, to) && unknown_) {
        if (is_pending && !fuses_unknown_) to.push_back(*unknown_);
        is_pending = true;
      }
    }
    if (is_pending) to.push_back(*unknown_);
  }

  bool append_bytes(std::string_view text, std::vector<int32_t>& to) const {
    if (!bytes_) return false;
    const auto token = [&](char c) { return (*bytes_)[static_cast<unsigned char>(c)]; };
    if (!std::all_of(text.begin(), text.end(), [&](char c) { return token(c).has_value(); })) return false;
    for (const char c : text) to.push_back(*token(c));
    return true;
  }

  void read_merges(const JsonPart& part) {
    uint32_t rank = 0;
    for (const JsonPart& merge : part.elements()) {
      const auto [left, right] = pair_of(merge);
      const auto a = vocabulary_.find(left), b = vocabulary_.find(right);
      const auto result = vocabulary_.find(left + right.substr(std::min(prefix_.size(), right.size())));
      if (!a || !b || !result)
        merge.fail("'" + left + "' and '" + right + "', or their sum, are not in the vocabulary");
      merges_.add(*a, *b, rank++, *result);
    }
  }

  static std::pair<std::string, std::string> pair_of(const JsonPart& merge) {
    if (merge.value().is_array()) {
      const auto parts = merge.elements();
      if (parts.size() != 2) merge.fail("expected two tokens");
      return {parts[0].text(), parts[1].text()};
    }
    const std::string text = merge.text();
    const size_t blank = text.find(' ');
    if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
      merge.fail("expected two tokens separated by a blank");
    return {text.substr(0, blank), text.substr(blank + 1)};
  }

  /// Returns whether no token has an underline after another character, so that words can be merged by themselves.
  bool find_cuts() const {
    if (!prefix_.empty() || !suffix_.empty() || whole_words_ || !vocabulary_.find(kUnderline)) return false;
    for (const auto& [text, id] : vocabulary_.ids()) {
      std::string_view rest = text;
      while (rest.starts_with(kUnderline)) rest.remove_prefix(kUnderline.size());
      if (rest.find(kUnderline) != std::string_view::npos) return false;
    }
    return true;
  }

  std::string prefix_, suffix_;
  bool fuses_unknown_, whole_words_, takes_bytes_ = false, cuts_at_underlines_ = false;
  std::optional<int32_t> unknown_;
  std::optional<ByteTokens> bytes_;  ///< with byte_fallback: the tokens of single bytes
  ByteTokens byte_ids_{};            ///< with takes_bytes_: the token of each byte
  Vocabulary words_;                 ///< with takes_bytes_ and whole_words_: tokens by their bytes
  MergeTable merges_;
};

}  // namespace

MergeTable::MergeTable(size_t merges) : table_(std::bit_ceil(merges * 2 + 2)), mask_(table_.size() - 1) {}

void MergeTable::add(int32_t left, int32_t right, uint32_t rank, int32_t token) {
  const uint64_t pair = key(left, right);
  size_t at = place(pair);
  while (table_[at].pair != kNone && table_[at].pair != pair) at = (at + 1) & mask_;
  table_[at] = {pair, rank, token};
}

void merge_tokens(const MergeTable& merges, std::vector<int32_t>& tokens, size_t first) {
  constexpr size_t kShort = 64;
  if (tokens.size() - first <= kShort)
    merge_short(merges, tokens, first);
  else
    merge_long(merges, tokens, first);
}

std::unique_ptr<TokenModel> read_bpe(const JsonPart& part) { return std::make_unique<Bpe>(part); }

}  // namespace trainctl
