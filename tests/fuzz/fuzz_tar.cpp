// libFuzzer target: any bytes are read as a tar file whose members lie within it, or cause an EnvError. The index of an
// accepted file is written and read again. Any bytes are also read as an index whose positions lie within a tar file,
// or cause an EnvError.
#include <cstdlib>
#include <cstring>

#include "engine/base/error.h"
#include "engine/train/data/sources/tar_index.h"

namespace {

using namespace trainctl;

TarReader reader_of(std::span<const uint8_t> bytes) {
  const auto read = [bytes](int64_t at, std::span<uint8_t> to) {
    if (at < 0 || static_cast<uint64_t>(at) + to.size() > bytes.size()) abort();
    if (!to.empty()) std::memcpy(to.data(), bytes.data() + at, to.size());
  };
  return {read, static_cast<int64_t>(bytes.size()), "fuzz"};
}

void read_members(std::span<const uint8_t> bytes) {
  TarReader reader = reader_of(bytes);
  int64_t last = 0;
  for (TarMember member; reader.next(member);) {
    const bool in_order = member.begin >= last && member.data_at > member.begin && member.bytes >= 0;
    if (!in_order || member.data_at + member.bytes > static_cast<int64_t>(bytes.size())) abort();
    last = member.data_at + member.bytes;
  }
}

void read_index(std::span<const uint8_t> bytes, const TarStamp& stamp) {
  const TarIndex index(bytes, stamp, "fuzz.idx");
  for (int64_t sample = 0; sample < std::min<int64_t>(index.samples(), 1000); ++sample)
    for (size_t e = 0; e < index.extensions().size(); ++e) {
      const auto part = index.part(sample, e);
      if (part && (part->begin < 0 || part->data_at < part->begin || part->data_at + part->bytes > stamp.bytes))
        abort();
    }
}

template <class F>
void may_fail(F&& run) {
  try {
    run();
  } catch (const EnvError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  const TarStamp stamp{static_cast<int64_t>(size), 7};
  may_fail([&] { read_members(bytes); });
  may_fail([&] {
    const std::vector<uint8_t> index = build_tar_index(reader_of(bytes), stamp, "fuzz");
    try {
      read_index(index, stamp);
    } catch (const EnvError&) {  // an index that we wrote must be readable
      abort();
    }
  });
  may_fail([&] {  // with the stamp that the index contains, so that the check of the stamp passes
    TarStamp own{1 << 20, 0};
    if (size >= 32) std::memcpy(&own, data + 16, sizeof own);
    if (own.bytes >= 0) read_index(bytes, own);
  });
  return 0;
}
