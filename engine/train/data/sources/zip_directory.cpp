// See the header.
#include "engine/train/data/sources/zip_directory.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/inflation.h"

namespace trainctl {
namespace {

constexpr size_t kEndBytes = 22, kZip64LocatorBytes = 20, kZip64EndBytes = 56, kEntryBytes = 46;
constexpr uint32_t kIn64 = 0xFFFFFFFF;       ///< the number is in the zip64 extra field
constexpr int64_t kMostZipInflation = 1032;  ///< deflate's limit: 258 bytes from 2 bits
constexpr int64_t kMostInflated = int64_t{64} << 30;
constexpr uint16_t kStored = 0, kDeflated = 8, kEncrypted = 1, kZip64Extra = 1;

template <class T>
T load(std::span<const uint8_t> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

[[noreturn]] void fail_in_zip(const std::string& file, int64_t at, const std::string& what) {
  throw EnvError(fmt::format("{}: byte {}: {}", file, with_commas(at), what));
}

bool has_magic(std::span<const uint8_t> bytes, size_t at, char third, char fourth) {
  return at + 4 <= bytes.size() && bytes[at] == 'P' && bytes[at + 1] == 'K' && bytes[at + 2] == third &&
         bytes[at + 3] == fourth;
}

/// The numbers that did not fit the entry itself, in the order of the format.
void read_zip64(std::span<const uint8_t> extra, ZipEntry& entry, bool bytes_in_64, bool packed_in_64, bool at_in_64,
                const std::string& file, int64_t place) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const auto id = load<uint16_t>(extra, at), size = load<uint16_t>(extra, at + 2);
    at += 4;
    if (size > extra.size() - at) break;
    if (id == kZip64Extra) {
      std::span<const uint8_t> numbers = extra.subspan(at, size);
      for (auto [wanted, number] :
           {std::pair{bytes_in_64, &entry.bytes}, {packed_in_64, &entry.packed_bytes}, {at_in_64, &entry.local_at}}) {
        if (!wanted) continue;
        if (numbers.size() < 8) fail_in_zip(file, place, "a zip64 entry without sizes");
        *number = load<int64_t>(numbers, 0);
        numbers = numbers.subspan(8);
      }
      return;
    }
    at += size;
  }
  if (bytes_in_64 || packed_in_64 || at_in_64) fail_in_zip(file, place, "a zip64 entry without sizes");
}

}  // namespace

ZipDirectory find_zip_directory(std::span<const uint8_t> tail, int64_t file_bytes, const std::string& file) {
  const int64_t tail_at = file_bytes - static_cast<int64_t>(tail.size());
  if (tail.size() < kEndBytes) fail_in_zip(file, 0, "the file is too short for a zip file");
  size_t end = tail.size() - kEndBytes + 1;
  do {
    if (end-- == 0)
      fail_in_zip(file, file_bytes,
                  "the end of a zip file is missing: it is truncated, or not a zip "
                  "file; download it again");
  } while (!has_magic(tail, end, 5, 6) || load<uint16_t>(tail, end + 20) != tail.size() - end - kEndBytes);
  const int64_t end_at = tail_at + static_cast<int64_t>(end);
  if (load<uint16_t>(tail, end + 4) != load<uint16_t>(tail, end + 6))
    fail_in_zip(file, end_at, "multi-part zip files are not supported");
  ZipDirectory directory{load<uint32_t>(tail, end + 16), load<uint32_t>(tail, end + 12),
                         load<uint16_t>(tail, end + 10)};
  int64_t directory_end = end_at;
  if (end >= kZip64LocatorBytes && has_magic(tail, end - kZip64LocatorBytes, 6, 7)) {
    const auto at64 = load<int64_t>(tail, end - kZip64LocatorBytes + 8);
    if (at64 < tail_at || at64 > end_at - static_cast<int64_t>(kZip64LocatorBytes + kZip64EndBytes) ||
        !has_magic(tail, static_cast<size_t>(at64 - tail_at), 6, 6))
      fail_in_zip(file, end_at, fmt::format("expected the zip64 end at byte {}", at64));
    const auto place = static_cast<size_t>(at64 - tail_at);
    directory = {load<int64_t>(tail, place + 48), load<int64_t>(tail, place + 40), load<int64_t>(tail, place + 32)};
    directory_end = at64;
  }
  if (directory.at < 0 || directory.bytes < 0 || directory.at > directory_end ||
      directory.bytes != directory_end - directory.at || directory.entries < 0 ||
      directory.entries > directory.bytes / static_cast<int64_t>(kEntryBytes))
    fail_in_zip(
        file, end_at,
        fmt::format("the directory of {} entries with {} bytes at byte {} does not end here; download the file again",
                    with_commas(directory.entries), with_commas(directory.bytes), with_commas(directory.at)));
  return directory;
}

std::vector<ZipEntry> parse_zip_directory(std::span<const uint8_t> bytes, const ZipDirectory& directory,
                                          const std::string& file) {
  std::vector<ZipEntry> entries;
  size_t at = 0;
  for (int64_t i = 0; i < directory.entries; ++i) {
    const int64_t place = directory.at + static_cast<int64_t>(at);
    if (bytes.size() - at < kEntryBytes || !has_magic(bytes, at, 1, 2))
      fail_in_zip(file, place, "expected a directory entry");
    const std::span<const uint8_t> fixed = bytes.subspan(at, kEntryBytes);
    const size_t name_bytes = load<uint16_t>(fixed, 28), extra_bytes = load<uint16_t>(fixed, 30);
    const size_t all = kEntryBytes + name_bytes + extra_bytes + load<uint16_t>(fixed, 32);
    if (all > bytes.size() - at) fail_in_zip(file, place, "an entry extends beyond the end of the directory");
    const auto packed = load<uint32_t>(fixed, 20), size = load<uint32_t>(fixed, 24),
               local_at = load<uint32_t>(fixed, 42);
    ZipEntry entry{std::string(reinterpret_cast<const char*>(bytes.data()) + at + kEntryBytes, name_bytes),
                   load<uint16_t>(fixed, 10) == kDeflated,
                   load<uint32_t>(fixed, 16),
                   packed,
                   size,
                   local_at};
    read_zip64(bytes.subspan(at + kEntryBytes + name_bytes, extra_bytes), entry, size == kIn64, packed == kIn64,
               local_at == kIn64, file, place);
    const std::string shown = printable(shortened(entry.name));
    if ((load<uint16_t>(fixed, 8) & kEncrypted) != 0) fail_in_zip(file, place, fmt::format("'{}' is encrypted", shown));
    if (const auto method = load<uint16_t>(fixed, 10); method != kStored && method != kDeflated)
      fail_in_zip(file, place,
                  fmt::format("'{}' is compressed with method {}; expected 0 (stored) or 8 (deflated)", shown, method));
    if (entry.bytes < 0 || entry.packed_bytes < 0 || entry.local_at < 0 || entry.local_at > directory.at ||
        entry.packed_bytes > directory.at - entry.local_at ||
        (!entry.is_deflated && entry.bytes != entry.packed_bytes) ||
        (entry.is_deflated && (entry.bytes > kMostInflated || entry.bytes / kMostZipInflation > entry.packed_bytes)))
      fail_in_zip(file, place,
                  fmt::format("'{}': {} bytes, compressed to {} at byte {}, are not possible", shown,
                              with_commas(entry.bytes), with_commas(entry.packed_bytes), with_commas(entry.local_at)));
    entries.push_back(std::move(entry));
    at += all;
  }
  return entries;
}

int64_t zip_data_at(std::span<const uint8_t> local, const ZipEntry& entry, int64_t file_bytes,
                    const std::string& file) {
  if (local.size() < static_cast<size_t>(kZipLocalBytes) || !has_magic(local, 0, 3, 4))
    fail_in_zip(file, entry.local_at, fmt::format("expected the header of '{}'", printable(shortened(entry.name))));
  const int64_t data_at = entry.local_at + kZipLocalBytes + load<uint16_t>(local, 26) + load<uint16_t>(local, 28);
  if (data_at > file_bytes || entry.packed_bytes > file_bytes - data_at)
    fail_in_zip(file, data_at,
                fmt::format("'{}' extends beyond the end of the file", printable(shortened(entry.name))));
  return data_at;
}

void require_zip_checksum(const ZipEntry& entry, uint32_t found, const std::string& file) {
  if (found == entry.crc) return;
  throw EnvError(fmt::format("{}: '{}': the checksum is {:08x}, but its content has {:08x}; download the file again",
                             file, printable(shortened(entry.name)), entry.crc, found));
}

void require_may_inflate(std::span<const ZipEntry> entries, int64_t file_bytes, const std::string& file) {
  const ZipEntry* largest = nullptr;
  int64_t packed = 0, bytes = 0, count = 0;
  const auto saturated = [](int64_t a, int64_t b) { return a > std::numeric_limits<int64_t>::max() - b ? a : a + b; };
  for (const ZipEntry& entry : entries) {
    if (!entry.is_deflated) continue;
    ++count;
    packed = saturated(packed, entry.packed_bytes);
    bytes = saturated(bytes, entry.bytes);
    if (largest == nullptr || entry.bytes > largest->bytes) largest = &entry;
  }
  packed = std::min(packed, file_bytes);
  if (may_inflate(packed, bytes)) return;
  throw EnvError(fmt::format(
      "{}: '{}'{}: {} bytes would inflate to {}, more than {} times as much, which indicates a damaged or malicious "
      "file; if the file is valid, store it uncompressed, as np.savez does",
      file, printable(shortened(largest->name)), count > 1 ? fmt::format(" and {} more", count - 1) : "",
      with_commas(packed), format_bytes(bytes), kMostInflationOfLarge));
}

std::vector<uint8_t> inflate_zip_entry(std::span<const uint8_t> packed, const ZipEntry& entry,
                                       const std::string& file) {
  const std::string shown = printable(shortened(entry.name));
  require_may_inflate({&entry, 1}, entry.packed_bytes, file);
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw EnvError(file + ": zlib is out of memory");
  const std::unique_ptr<z_stream, decltype([](z_stream* open) { inflateEnd(open); })> ended(&stream);
  std::vector<uint8_t> bytes(static_cast<size_t>(entry.bytes));
  constexpr size_t kAtOnce = size_t{1} << 30;  // zlib counts in 32 bits
  size_t read = 0, written = 0;
  int status = Z_OK;
  while (status == Z_OK) {
    stream.next_in = const_cast<Bytef*>(packed.data() + read);
    stream.avail_in = static_cast<uInt>(std::min(packed.size() - read, kAtOnce));
    stream.next_out = bytes.data() + written;
    stream.avail_out = static_cast<uInt>(std::min(bytes.size() - written, kAtOnce));
    const uInt in = stream.avail_in, out = stream.avail_out;
    status = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += out - stream.avail_out;
  }
  if (status != Z_STREAM_END || written != bytes.size() || read != packed.size())
    throw EnvError(fmt::format(
        "{}: '{}': expected {} bytes from {} deflated bytes, found {} from {}{}; download the file again", file, shown,
        with_commas(entry.bytes), with_commas(entry.packed_bytes), with_commas(static_cast<int64_t>(written)),
        with_commas(static_cast<int64_t>(read)), stream.msg ? fmt::format(" ({})", stream.msg) : ""));
  require_zip_checksum(entry, static_cast<uint32_t>(crc32_z(0, bytes.data(), bytes.size())), file);
  return bytes;
}

}  // namespace trainctl
