// The tokens of a set's documents. They are computed once per host, and kept in a file that all later readers map:
//
//   $XDG_CACHE_HOME/trainctl/tokens/<key>     the key is a digest of all that the tokens depend on
//
//   file    := magic key checksum documents count word{count} padding offset{documents + 1}
//   word    := u32: the token; bit 31: it is trained
//   offset  := i64: the first word of the document; the last one is `count`
//   padding := zeros up to a multiple of 8 bytes
//
// A file appears with its whole content: it is written as <key>.part, synced and renamed. The lock of that part makes
// one process tokenize while others wait for it; the lock of a process that dies is free. A damaged file is replaced.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat.h"
#include "engine/train/data/mapped_file.h"

namespace trainctl {

/// The tokens of one document. It is valid as long as its cache.
class DocumentTokens {
 public:
  static constexpr uint32_t kTrained = uint32_t{1} << 31;

  explicit DocumentTokens(std::span<const uint32_t> words) : words_(words) {}
  int64_t size() const { return static_cast<int64_t>(words_.size()); }
  std::span<const uint32_t> words() const { return words_; }
  int32_t token(int64_t i) const { return static_cast<int32_t>(words_[static_cast<size_t>(i)] & ~kTrained); }
  bool is_trained(int64_t i) const { return (words_[static_cast<size_t>(i)] & kTrained) != 0; }
  /// The trained tokens among [begin, end); `end` may exceed the number of tokens.
  int64_t count_trained(int64_t begin, int64_t end) const;

 private:
  std::span<const uint32_t> words_;
};

class TokenCache {
 public:
  /// Tokenizes one document. Several threads call it at once, each with its own cache.
  using Tokenize = std::function<MarkedTokens(int64_t document, WordCache& cache)>;

  /// Reads the file of the key, or tokenizes all documents on the cores of this process and writes it. If it cannot be
  /// written, the tokens stay in the memory of this process. Throws the error of `tokenize` for the first document that
  /// has one.
  TokenCache(const std::string& key, int64_t documents, const Tokenize& tokenize);

  int64_t size() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  DocumentTokens document(int64_t number) const;
  /// Returns whether this object has computed the tokens, not read them.
  bool was_made() const { return was_made_; }
  /// Memory of this process, without the pages of the file.
  int64_t memory_bytes() const {
    return static_cast<int64_t>(own_.size() * sizeof(uint32_t) + own_offsets_.size() * 8);
  }

 private:
  bool map(const std::string& path, const std::string& key, int64_t documents);
  void make(const std::string& path, const std::string& key, int64_t documents, const Tokenize& tokenize);
  void keep_in_memory(int64_t documents, const Tokenize& tokenize);

  MappedFile file_;
  std::vector<uint32_t> own_;
  std::vector<int64_t> own_offsets_;
  std::span<const uint32_t> words_;
  std::span<const int64_t> offsets_;
  bool was_made_ = false;
};

/// The folder of the files; empty if there is none.
std::string token_cache_folder();

/// Computes a key from everything that the tokens depend on.
class TokenKey {
 public:
  /// `tokenizer`: its folder or file, with the chat template. Throws EnvError if a file cannot be read.
  TokenKey(const std::vector<std::string>& files, const std::string& tokenizer);
  void add(std::string_view setting);
  std::string text() const;

 private:
  void add_file(const std::string& path);
  std::string settings_;  ///< digests and settings, each on a line
};

}  // namespace trainctl
