// The IDX format of MNIST, raw or gzip-compressed (recognized by its first bytes, not by its name).
#include "engine/train/data/idx.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/byte_reader.h"
#include "engine/train/data/inflation.h"

namespace trainctl {
namespace {

constexpr int kMaxDims = 8;

struct IdxType {
  uint8_t code;
  int64_t bytes;
  const char* name;
};
constexpr IdxType kElementTypes[] = {{kIdxU8, 1, "u8"}, {0x09, 1, "i8"},  {0x0B, 2, "i16"},
                                     {0x0C, 4, "i32"},  {0x0D, 4, "f32"}, {0x0E, 8, "f64"}};

const IdxType* element_type(uint8_t code) {
  for (const IdxType& type : kElementTypes) {
    if (type.code == code) return &type;
  }
  return nullptr;
}

[[noreturn]] void fail(const std::string& file, int64_t byte, const std::string& what) {
  throw EnvError(fmt::format("{}: byte {}: {}", file, byte, what));
}

/// Throws the error of a truncated file. The message also says how far a compressed file was inflated, because `byte`
/// then counts inflated bytes.
[[noreturn]] void fail_truncated(const ByteReader& reader, const std::string& file, const std::string& expected) {
  fail(file, reader.position(),
       fmt::format("expected {}, found the end of the {}; download the file again", expected,
                   reader.compressed() ? "inflated data" : "file"));
}

IdxHeader read_header(ByteReader& reader, const std::string& file, int64_t max_bytes) {
  uint8_t magic[4] = {};
  if (reader.read(magic) != sizeof(magic)) fail_truncated(reader, file, "an IDX magic number of 4 bytes");
  const IdxType* type = element_type(magic[2]);
  if (magic[0] != 0 || magic[1] != 0 || type == nullptr) {
    fail(file, 0,
         fmt::format("expected an IDX magic number (00 00, an element type 08 09 0b 0c 0d or 0e, the number of "
                     "dims), found {:02x} {:02x} {:02x} {:02x}",
                     magic[0], magic[1], magic[2], magic[3]));
  }
  if (magic[3] < 1 || magic[3] > kMaxDims) {
    fail(file, 3, fmt::format("expected 1 to {} dims, found {}", kMaxDims, magic[3]));
  }
  IdxHeader header{.type = magic[2], .dims = {}};
  int64_t bytes = type->bytes;
  for (int d = 0; d < magic[3]; ++d) {
    uint8_t word[4] = {};
    const int64_t at = reader.position();
    if (reader.read(word) != sizeof(word)) fail_truncated(reader, file, fmt::format("the 4 bytes of dim {}", d));
    const int64_t dim = (int64_t{word[0]} << 24) | (word[1] << 16) | (word[2] << 8) | word[3];
    if (dim < 1) fail(file, at, fmt::format("dim {}: expected a size of at least 1, found 0", d));
    if (dim > max_bytes / bytes) {
      fail(file, at,
           fmt::format("dim {} of {} makes the file larger than the limit of {}", d, with_commas(dim),
                       format_bytes(max_bytes)));
    }
    bytes *= dim;
    header.dims.push_back(dim);
  }
  return header;
}

}  // namespace

int64_t IdxHeader::element_bytes() const {
  const IdxType* found = element_type(type);
  check(found != nullptr, "a header must have a known element type");
  return found->bytes;
}

std::string to_string(const IdxHeader& header) {
  return std::string(element_type(header.type)->name) + " " + to_string(header.dims);
}

void check_inflation(const IdxHeader& header, int64_t packed_bytes, const std::string& file) {
  if (may_inflate(packed_bytes, header.body_bytes())) return;
  throw EnvError(fmt::format(
      "{}: {} bytes would inflate to {} of {}, more than {} times as much, which indicates a damaged or malicious "
      "file; if the file is valid, gunzip it and use the raw file",
      file, with_commas(packed_bytes), format_bytes(header.body_bytes()), to_string(header), kMostInflationOfLarge));
}

IdxHeader parse_idx_header(std::span<const uint8_t> start, const std::string& file) {
  ByteReader reader(start, file);
  return read_header(reader, file, kMaxIdxBytes);
}

IdxArray parse_idx(std::span<const uint8_t> bytes, const std::string& file, int64_t max_bytes) {
  ByteReader reader(bytes, file);
  IdxArray array{read_header(reader, file, max_bytes), {}};
  const int64_t expected = array.header.body_bytes();
  const std::string wanted = fmt::format("{} bytes of {}", with_commas(expected), to_string(array.header));
  if (expected > reader.most_remaining()) {
    fail(file, reader.position(),
         fmt::format("expected {}, found at most {}; download the file again", wanted,
                     with_commas(reader.most_remaining())));
  }
  if (reader.compressed()) check_inflation(array.header, static_cast<int64_t>(bytes.size()), file);
  array.body.resize(static_cast<size_t>(expected));
  const size_t got = reader.read(array.body);
  if (got != array.body.size()) {
    fail_truncated(reader, file,
                   fmt::format("{} ({} more)", wanted, with_commas(expected - static_cast<int64_t>(got))));
  }
  uint8_t extra = 0;
  if (reader.read({&extra, 1}) != 0) {
    fail(file, reader.position() - 1, fmt::format("expected the end of the file after {}, found more bytes", wanted));
  }
  if (!reader.complete()) fail_truncated(reader, file, "the gzip trailer");
  return array;
}

}  // namespace trainctl
