// Any bytes are an npy or npz file whose arrays lie within it, or an EnvError.
#include <algorithm>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/train/data/sources/npy_header.h"
#include "engine/train/data/sources/zip_directory.h"

namespace {

using namespace trainctl;

constexpr int64_t kMostInflated = int64_t{16} << 20;

void read_npy(std::span<const uint8_t> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const NpyHeader header = parse_npy_header(bytes.first(std::min<size_t>(bytes.size(), kNpyHeaderBytes)), size, "fuzz");
  if (header.data_at < 0 || header.data_bytes < 0 || header.data_at + header.data_bytes != size) abort();
  FieldBytes out;
  convert(header.stored, bytes.subspan(static_cast<size_t>(header.data_at)), out);
  const auto elements = header.data_bytes / byte_size(header.stored);
  if (static_cast<int64_t>(out.size()) != elements * byte_size(element_type(header.stored))) abort();
}

void read_npz(std::span<const uint8_t> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const auto part = [&](int64_t at, int64_t count) {
    if (at < 0 || count < 0 || at > size || count > size - at) abort();
    return bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(count));
  };
  const ZipDirectory directory =
      find_zip_directory(bytes.last(std::min<size_t>(bytes.size(), kZipTailBytes)), size, "fuzz");
  for (const ZipEntry& entry : parse_zip_directory(part(directory.at, directory.bytes), directory, "fuzz")) {
    try {
      const auto local = part(entry.local_at, std::min(kZipLocalBytes, size - entry.local_at));
      const int64_t data_at = zip_data_at(local, entry, size, "fuzz");
      const auto data = part(data_at, entry.packed_bytes);
      if (!entry.is_deflated) read_npy(data);
      if (entry.is_deflated && entry.bytes <= kMostInflated) read_npy(inflate_zip_entry(data, entry, "fuzz"));
    } catch (const EnvError&) {  // the next one may be whole
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const auto read : {read_npy, read_npz}) {
    try {
      read({data, size});
    } catch (const EnvError&) {
    }
  }
  return 0;
}
