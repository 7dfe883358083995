// Times of log bytes: records to bytes and back.
#include "launcher/log_times.h"

#include <unistd.h>

#include "engine/base/error.h"

namespace trainctl {
namespace {

constexpr int kValueBits = 56;
constexpr uint64_t kValueMask = (uint64_t{1} << kValueBits) - 1;
constexpr size_t kTimesReadBytes = 1 << 16;

void put(std::string& out, uint64_t word) {
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(word >> shift & 0xff);
}

uint64_t get(std::string_view bytes) {
  uint64_t word = 0;
  for (size_t i = 8; i-- > 0;) word = word << 8 | static_cast<uint8_t>(bytes[i]);
  return word;
}

}  // namespace

std::string encode(const TimesRecord& record) {
  check(record.value >= 0 && static_cast<uint64_t>(record.value) <= kValueMask, "a log's offset has 56 bits");
  std::string bytes;
  put(bytes, static_cast<uint64_t>(record.ns));
  put(bytes, static_cast<uint64_t>(record.kind) << kValueBits | static_cast<uint64_t>(record.value));
  return bytes;
}

std::optional<TimesRecord> decode_times(std::string_view bytes) {
  if (bytes.size() < kTimesRecordBytes) return std::nullopt;
  const uint64_t ns = get(bytes), word = get(bytes.substr(8));
  const uint64_t kind = word >> kValueBits;
  if (kind > static_cast<uint64_t>(TimesRecord::Kind::lost) || ns > INT64_MAX) return std::nullopt;
  return TimesRecord{static_cast<TimesRecord::Kind>(kind), static_cast<int64_t>(ns),
                     static_cast<int64_t>(word & kValueMask)};
}

const TimesRecord* TimesReader::peek() {
  if (next_) return &*next_;
  if (fd_ < 0 || broken_) return nullptr;
  if (buffer_.size() - at_ < kTimesRecordBytes) {
    buffer_.erase(0, at_);
    at_ = 0;
    const size_t kept = buffer_.size();
    buffer_.resize(kept + kTimesReadBytes);
    const ssize_t got = pread(fd_, buffer_.data() + kept, kTimesReadBytes, offset_);
    buffer_.resize(kept + static_cast<size_t>(got < 0 ? 0 : got));
    offset_ += got < 0 ? 0 : got;
    if (buffer_.size() < kTimesRecordBytes) return nullptr;
  }
  const std::string_view rest = std::string_view(buffer_).substr(at_);
  at_ += kTimesRecordBytes;
  if (!began_) {
    began_ = true;
    broken_ = !rest.starts_with(kTimesMagic);
    return peek();
  }
  next_ = decode_times(rest);
  broken_ = !next_;
  return next_ ? &*next_ : nullptr;
}

}  // namespace trainctl
