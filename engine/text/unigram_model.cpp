// Unigram: the tokens whose log probabilities have the largest sum (Kudo 2018), found by Viterbi's algorithm.
#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "engine/text/byte_trie.h"
#include "engine/text/token_model.h"
#include "engine/text/unicode.h"

namespace trainctl {
namespace {

class Unigram final : public TokenModel {
 public:
  explicit Unigram(const JsonPart& part) : TokenModel({}) {
    for (const JsonPart& entry : part.at("vocab").elements()) add(entry);
    if (part.has("unk_id")) {
      const int64_t id = part.at("unk_id").integer();
      if (id < 0 || id >= static_cast<int64_t>(scores_.size())) part.at("unk_id").fail("is not in the vocabulary");
      unknown_ = static_cast<int32_t>(id);
    }
    if (part.boolean("byte_fallback", false)) bytes_ = find_byte_tokens(vocabulary_);
    constexpr double kUnknownPenalty = 10;
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
  }

  void tokenize(std::string_view piece, WordCache& cache, std::vector<int32_t>& to) const override {
    if (const auto* known = cache.find(piece)) {
      to.insert(to.end(), known->ids, known->ids + known->count);
      return;
    }
    const size_t before = to.size();
    append_best(piece, to);
    cache.add(piece, std::span(to).subspan(before));
  }

 private:
  struct Node {
    double score = 0;
    size_t begin = std::string_view::npos;
    int32_t id = 0;
  };

  void add(const JsonPart& entry) {
    const auto parts = entry.elements();
    if (parts.size() != 2) entry.fail("expected a token and its score");
    const auto id = static_cast<int32_t>(scores_.size());
    scores_.push_back(parts[1].number());
    vocabulary_.add(parts[0].text(), id);
    trie_.add(parts[0].text(), id);
  }

  std::vector<Node> best_paths(std::string_view text) const {
    std::vector<Node> nodes(text.size() + 1);
    const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
      Node& node = nodes[end];
      score += nodes[begin].score;
      if (node.begin == std::string_view::npos || score > node.score) node = {score, begin, id};
    };
    for (size_t at = 0; at < text.size();) {
      const size_t length = code_point(text, at).bytes;
      bool has_character = false;
      trie_.prefixes(text.substr(at), [&](size_t bytes, int32_t id) {
        offer(at, at + bytes, id, scores_[static_cast<size_t>(id)]);
        has_character = has_character || bytes == length;
      });
      if (!has_character) {
        if (unknown_ < 0) throw EnvError("the tokenizer has no token for a character of the text, and no unk_id");
        offer(at, at + length, unknown_, unknown_score_);
      }
      at += length;
    }
    return nodes;
  }

  void append_best(std::string_view text, std::vector<int32_t>& to) const {
    const std::vector<Node> nodes = best_paths(text);
    struct Part {
      size_t begin, end;
      int32_t id;
    };
    std::vector<Part> parts;  // from the last to the first
    for (size_t end = text.size(); end > 0; end = nodes[end].begin) {
      const Node& node = nodes[end];
      if (node.id == unknown_ && !parts.empty() && parts.back().id == unknown_)
        parts.back().begin = node.begin;
      else
        parts.push_back({node.begin, end, node.id});
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part)
      append(text.substr(part->begin, part->end - part->begin), part->id, to);
  }

  void append(std::string_view text, int32_t id, std::vector<int32_t>& to) const {
    if (id != unknown_) return to.push_back(id);
    if (const auto known = vocabulary_.find(text)) return to.push_back(*known);
    const auto token = [&](char c) { return (*bytes_)[static_cast<unsigned char>(c)]; };
    if (!bytes_ || !std::all_of(text.begin(), text.end(), [&](char c) { return token(c).has_value(); }))
      return to.push_back(unknown_);
    for (const char c : text) to.push_back(*token(c));
  }

  std::vector<double> scores_;
  ByteTrie trie_;
  int32_t unknown_ = -1;
  double unknown_score_ = 0;
  std::optional<ByteTokens> bytes_;
};

}  // namespace

std::unique_ptr<TokenModel> read_unigram(const JsonPart& part) {
  if (part.at("vocab").value().empty()) part.at("vocab").fail("is empty");
  return std::make_unique<Unigram>(part);
}

}  // namespace trainctl
