// libFuzzer target: any bytes, raw or gzip, are read as an IDX array that fits its header, or cause an EnvError. Raw
// input is also read in compressed form and must give the same result, so that fuzzing reaches headers behind gzip's
// checksum.
#include <zlib.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/data/idx.h"

namespace {

using trainctl::IdxArray;

std::optional<IdxArray> parse(std::span<const uint8_t> bytes) {
  constexpr int64_t kMost = int64_t{64} << 20;
  try {
    const IdxArray array = trainctl::parse_idx(bytes, "fuzz", kMost);
    if (static_cast<int64_t>(array.body.size()) != array.header.body_bytes()) abort();
    if (array.header.body_bytes() > kMost || trainctl::to_string(array.header).empty()) abort();
    return array;
  } catch (const trainctl::EnvError&) {
    return std::nullopt;
  }
}

std::vector<uint8_t> gzip(std::span<const uint8_t> bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 1, Z_DEFLATED, 16 + 9, 1, Z_DEFAULT_STRATEGY) != Z_OK) abort();
  std::vector<uint8_t> out(deflateBound(&stream, bytes.size()));
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) abort();
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  try {
    trainctl::parse_idx_header(bytes, "fuzz");
  } catch (const trainctl::EnvError&) {
  }
  const std::optional<IdxArray> raw = parse(bytes);
  if (size >= 2 && data[0] == 0x1f && data[1] == 0x8b) return 0;  // already compressed
  const std::optional<IdxArray> inflated = parse(gzip(bytes));
  if (raw.has_value() != inflated.has_value()) abort();
  if (raw && (raw->header.dims != inflated->header.dims || raw->body != inflated->body)) abort();
  return 0;
}
