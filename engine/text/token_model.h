// The model of a tokenizer: from the pieces of a text to the numbers of tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/json_part.h"
#include "engine/text/word_cache.h"

namespace trainctl {

/// Tokens by text, and texts by token.
class Vocabulary {
 public:
  void add(const std::string& text, int32_t id);
  std::optional<int32_t> find(std::string_view text) const;
  /// Null for a number without a token.
  const std::string* text(int32_t id) const;
  /// Number of texts, as tokenizers counts them.
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  int32_t largest() const { return static_cast<int32_t>(texts_.size()) - 1; }
  const auto& ids() const { return ids_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<std::optional<std::string>> texts_;
};

/// Reads an object {"text": number, …}.
Vocabulary read_vocabulary(const JsonPart& part);

/// The tokens <0x00> to <0xFF>, if the vocabulary has them.
using ByteTokens = std::array<std::optional<int32_t>, 256>;
ByteTokens find_byte_tokens(const Vocabulary& vocabulary);

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the tokens of a piece, which is not empty. Threads may call it at once, each with a cache of its own.
  virtual void tokenize(std::string_view piece, WordCache& cache, std::vector<int32_t>& to) const = 0;
  /// True if tokenize() may take the bytes of pieces that are otherwise written as characters (byte_alphabet.h).
  virtual bool take_bytes() { return false; }
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Vocabulary vocabulary_;
};

/// Throws EnvError for a type or a setting that is not supported.
std::unique_ptr<TokenModel> read_model(const JsonPart& part);

std::unique_ptr<TokenModel> read_bpe(const JsonPart& part);
std::unique_ptr<TokenModel> read_unigram(const JsonPart& part);
std::unique_ptr<TokenModel> read_word_piece(const JsonPart& part);
std::unique_ptr<TokenModel> read_word_level(const JsonPart& part);

}  // namespace trainctl
