// libFuzzer target: any bytes are read as an npy or npz file whose arrays lie within the file, or cause an EnvError.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/train/data/sources/npy_header.h"
#include "engine/train/data/sources/zip_file.h"

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

/// A file of these bytes that exists only in memory.
class FileInMemory {
 public:
  explicit FileInMemory(std::span<const uint8_t> bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || write(descriptor_, bytes.data(), bytes.size()) != std::ssize(bytes)) abort();
  }
  ~FileInMemory() { close(descriptor_); }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void read_npz(std::span<const uint8_t> bytes) {
  const FileInMemory in_memory(bytes);
  const InputFile file(in_memory.path());
  ZipFile zip(file);
  for (const ZipMember& member : zip.members()) {
    try {
      if (member.bytes > kMostInflated) continue;
      if (!member.is_deflated) {
        const int64_t at = zip.data_at(member);
        if (at < 0 || member.bytes > std::ssize(bytes) - at) abort();
        read_npy(bytes.subspan(static_cast<size_t>(at), static_cast<size_t>(member.bytes)));
      }
      read_npy(zip.read(member));
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
