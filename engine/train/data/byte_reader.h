// Reads bytes in order from memory, and inflates them if they are gzip.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <span>
#include <string>

namespace trainctl {

class ByteReader {
 public:
  /// `bytes` must outlive the reader; `file` is for messages.
  ByteReader(std::span<const uint8_t> bytes, std::string file);
  ~ByteReader();
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  /// Fills `to` and returns the number of bytes read, which is smaller than `to` only at the end. Throws EnvError if
  /// gzip data are damaged.
  size_t read(std::span<uint8_t> to);
  int64_t position() const { return position_; }  ///< position of the next byte, after inflating
  bool compressed() const { return compressed_; }
  /// Returns whether everything has been read; for gzip, the trailer must match too.
  bool complete() const { return compressed_ ? ended_ : position_ == static_cast<int64_t>(bytes_.size()); }
  /// An upper bound of the bytes that read() can still return.
  int64_t most_remaining() const;

 private:
  size_t inflate_into(std::span<uint8_t> to);

  std::span<const uint8_t> bytes_;
  std::string file_;
  bool compressed_ = false;
  bool ended_ = false;  ///< gzip: its trailer has been checked
  int64_t position_ = 0;
  size_t consumed_ = 0;  ///< compressed bytes that zlib has consumed
  z_stream stream_{};
};

}  // namespace trainctl
