// Writes a token file atomically.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/train/data/token_file.h"

namespace trainctl {

class TokenWriter {
 public:
  /// `type`: u16 or i32. `header`: begin with that of llm.c. `replace`: an existing file is replaced, else it is an
  /// error. Throws EnvError if the file cannot be written.
  TokenWriter(std::string path, TokenType type, bool header, bool replace);
  ~TokenWriter();  ///< without finish() nothing is left
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Each byte is a token. Throws EnvError if the disk is full, or if there are more tokens than the header can count.
  void write_bytes(std::span<const uint8_t> bytes);
  /// The same for tokens that fit the type.
  void write_tokens(std::span<const int32_t> tokens);
  /// Gives the file its name.
  void finish();
  int64_t count() const { return count_; }

 private:
  void add_count(size_t tokens);
  void write(const void* data, size_t bytes);
  [[noreturn]] void fail(const char* what) const;

  const std::string path_, part_;
  const TokenType type_;
  const bool header_, replace_;
  int fd_ = -1;
  int64_t count_ = 0;
  std::vector<uint16_t> tokens_;
};

}  // namespace trainctl
