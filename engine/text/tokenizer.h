// A tokenizer: from text to tokens and back. tokenizer.json is read by our code, SentencePiece models by its library.
//
//   text -> added tokens found -> normalizer -> pre-tokenizer -> model -> post-processor -> tokens
//
// The tokens are those of the Python package `tokenizers`. Truncation and padding in tokenizer.json are not applied.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/word_cache.h"

namespace trainctl {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Appends the tokens of `text`, which is UTF-8. `adds_special`: with those that the post-processor adds around a
  /// text. Throws EnvError, which names the byte, if it is not UTF-8. Threads may call it at once, each with its own
  /// cache.
  virtual void encode(std::string_view text, bool adds_special, WordCache& cache, std::vector<int32_t>& to) const = 0;
  /// Numbers without a token are left out; with `skips_special` special tokens too.
  virtual std::string decode(std::span<const int32_t> tokens, bool skips_special) const = 0;
  /// The largest token plus one.
  virtual int64_t vocabulary_size() const = 0;
  /// The number of a token by its text in the vocabulary.
  virtual std::optional<int32_t> find(std::string_view token) const = 0;

  std::vector<int32_t> encode(std::string_view text, bool adds_special = true) const;
};

/// `path`: tokenizer.json, a SentencePiece model (.model), or a folder that has one. EnvError names the file, and the
/// part that is not supported.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

/// The file that open_tokenizer() reads. Throws EnvError if the folder has none.
std::string find_tokenizer_file(const std::string& path);

/// Parses the contents of a tokenizer.json. `file`: its name in errors.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& file);
std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& file);

}  // namespace trainctl
