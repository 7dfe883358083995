// Bytes in order from memory, inflated on the way where they are gzip.
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

  /// Fills `to` as far as there are bytes; returns how many. EnvError where the gzip data are broken.
  size_t read(std::span<uint8_t> to);
  int64_t position() const { return position_; }  ///< of the next byte, after inflating
  bool compressed() const { return compressed_; }
  /// Nothing is left, and a gzip trailer has been read and agrees. True of raw bytes at their end.
  bool complete() const { return compressed_ ? ended_ : position_ == static_cast<int64_t>(bytes_.size()); }
  /// An upper bound of the bytes that read() can still give.
  int64_t most_remaining() const;

 private:
  size_t inflate_into(std::span<uint8_t> to);

  std::span<const uint8_t> bytes_;
  std::string file_;
  bool compressed_ = false;
  bool ended_ = false;  ///< gzip: its trailer has been checked
  int64_t position_ = 0;
  size_t consumed_ = 0;  ///< compressed bytes that zlib has taken
  z_stream stream_{};
};

}  // namespace trainctl
