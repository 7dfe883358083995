// Reads bytes in order from memory, and inflates them if they are gzip. zlib checks the CRC and the length in the gzip
// trailer.
#include "engine/train/data/byte_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int64_t kMostInflation = 1032;                 ///< deflate's limit: 258 bytes from 2 bits
constexpr size_t kMostInflatedAtOnce = size_t{1} << 30;  ///< zlib counts in 32 bits
constexpr int kGzipOnly = 16 + MAX_WBITS;

}  // namespace

ByteReader::ByteReader(std::span<const uint8_t> bytes, std::string file)
    : bytes_(bytes), file_(std::move(file)), compressed_(bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) {
  if (!compressed_) return;
  if (inflateInit2(&stream_, kGzipOnly) != Z_OK) throw EnvError(file_ + ": zlib is out of memory");
}

ByteReader::~ByteReader() {
  if (compressed_) inflateEnd(&stream_);
}

int64_t ByteReader::most_remaining() const {
  const auto size = static_cast<int64_t>(bytes_.size());
  return compressed_ ? size * kMostInflation - position_ : size - position_;
}

size_t ByteReader::read(std::span<uint8_t> to) {
  size_t got = 0;
  if (compressed_) {
    got = inflate_into(to);
  } else {
    got = std::min(to.size(), bytes_.size() - static_cast<size_t>(position_));
    if (got > 0) std::memcpy(to.data(), bytes_.data() + position_, got);
  }
  position_ += static_cast<int64_t>(got);
  return got;
}

/// Inflates until `to` is full or the file ends. Returns the number of bytes.
size_t ByteReader::inflate_into(std::span<uint8_t> to) {
  size_t got = 0;
  while (got < to.size() && !ended_) {
    stream_.next_in = const_cast<Bytef*>(bytes_.data() + consumed_);
    stream_.avail_in = static_cast<uInt>(std::min(bytes_.size() - consumed_, kMostInflatedAtOnce));
    stream_.next_out = to.data() + got;
    stream_.avail_out = static_cast<uInt>(std::min(to.size() - got, kMostInflatedAtOnce));
    const uInt room = stream_.avail_out, available = stream_.avail_in;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    got += room - stream_.avail_out;
    consumed_ += available - stream_.avail_in;
    ended_ = status == Z_STREAM_END;
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      throw EnvError(fmt::format("{}: byte {}: damaged gzip data: {}; download the file again", file_, consumed_,
                                 stream_.msg ? stream_.msg : "zlib error"));
    }
    if (room == stream_.avail_out && available == stream_.avail_in) break;  // the file ends too early
  }
  if (ended_ && consumed_ < bytes_.size()) {
    throw EnvError(fmt::format("{}: byte {}: expected the end of the gzip file, found {} more bytes", file_, consumed_,
                               bytes_.size() - consumed_));
  }
  return got;
}

}  // namespace trainctl
