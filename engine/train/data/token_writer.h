// Writes a file of uint16 tokens that is there whole or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainctl {

class TokenWriter {
 public:
  /// `header`: begin with that of llm.c. `replace`: an existing file is replaced, else it is an error. EnvError if the
  /// file cannot be written.
  TokenWriter(std::string path, bool header, bool replace);
  ~TokenWriter();  ///< without finish() nothing is left
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Each byte is a token. EnvError if the disk is full, or if there are more tokens than the header can count.
  void write_bytes(std::span<const uint8_t> bytes);
  /// Gives the file its name.
  void finish();
  int64_t count() const { return count_; }

 private:
  void write(const void* data, size_t bytes);
  [[noreturn]] void fail(const char* what) const;

  const std::string path_, part_;
  const bool header_, replace_;
  int fd_ = -1;
  int64_t count_ = 0;
  std::vector<uint16_t> tokens_;
};

}  // namespace trainctl
