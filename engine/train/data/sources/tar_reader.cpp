// The members of a tar file, from their headers (POSIX.1-2001 pax, ustar, and GNU's long names and large numbers).
#include "engine/train/data/sources/tar_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr int64_t kWindowBytes = 16 << 10;
constexpr int64_t kMostNameBytes = 1 << 20;  ///< limit of a long name, or of a pax header

// The offsets of the fields of a header.
constexpr size_t kNameBytes = 100, kSizeAt = 124, kSizeBytes = 12, kChecksumAt = 148, kChecksumBytes = 8, kTypeAt = 156;
constexpr size_t kMagicAt = 257, kPrefixAt = 345, kPrefixBytes = 155;

bool is_zero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

std::string_view text_of(std::span<const uint8_t> field) {
  const std::string_view text(reinterpret_cast<const char*>(field.data()), field.size());
  return text.substr(0, text.find('\0'));
}

int64_t padded(int64_t bytes) { return (bytes + kTarBlock - 1) / kTarBlock * kTarBlock; }

std::string name_of(std::span<const uint8_t> header) {
  const std::string name(text_of(header.first(kNameBytes)));
  // In GNU's own format ("ustar  ") the bytes of the prefix have another meaning.
  if (text_of(header.subspan(kMagicAt, 6)) != "ustar") return name;
  const std::string_view prefix = text_of(header.subspan(kPrefixAt, kPrefixBytes));
  return prefix.empty() ? name : std::string(prefix) + "/" + name;
}

}  // namespace

TarReader::TarReader(Read read, int64_t file_bytes, std::string file, int64_t begin)
    : read_(std::move(read)), file_bytes_(file_bytes), file_(std::move(file)), at_(begin) {}

void TarReader::fail(int64_t at, const std::string& what) const {
  throw EnvError(fmt::format("{}: byte {}: {}", file_, with_commas(at), what));
}

std::span<const uint8_t> TarReader::block(int64_t at) {
  if (file_bytes_ - at < kTarBlock)
    fail(at,
         fmt::format("expected a header of 512 bytes, or the two blocks of zeros that end an archive, found {} more "
                     "bytes: the file is truncated; download it again",
                     file_bytes_ - at));
  const auto window_bytes = static_cast<int64_t>(window_.size());
  if (at < window_at_ || at + kTarBlock > window_at_ + window_bytes) {
    window_.resize(static_cast<size_t>(std::min(kWindowBytes, file_bytes_ - at)));
    window_at_ = at;
    read_(at, window_);
  }
  return std::span(window_).subspan(static_cast<size_t>(at - window_at_), static_cast<size_t>(kTarBlock));
}

int64_t TarReader::number(std::span<const uint8_t> field, int64_t at, const char* what) const {
  if ((field[0] & 0x80) != 0) {  // base 256: big-endian, after the first bit
    uint64_t value = field[0] & 0x7F;
    for (const uint8_t byte : field.subspan(1)) {
      if (value >> 55 != 0) fail(at, fmt::format("the {} exceeds the maximum file size", what));
      value = value << 8 | byte;
    }
    return static_cast<int64_t>(value);
  }
  const std::string_view text = text_of(field);
  const size_t first = std::min(text.find_first_not_of(' '), text.size());
  const std::string_view digits = text.substr(first, text.find_last_not_of(' ') + 1 - first);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
  if (digits.empty() || digits[0] == '-' || error != std::errc() || end != digits.data() + digits.size())
    fail(at, fmt::format("the {}: expected octal digits, found '{}'", what, printable(shortened(text))));
  return value;
}

void TarReader::refuse_gzip() {
  std::array<uint8_t, 2> start{};
  if (file_bytes_ < static_cast<int64_t>(start.size())) return;
  read_(0, start);
  if (start[0] == 0x1f && start[1] == 0x8b)
    fail(0, "it is compressed with gzip; gunzip it, because samples are read in random order");
}

void TarReader::check_checksum(std::span<const uint8_t> header, int64_t at) const {
  const int64_t expected = number(header.subspan(kChecksumAt, kChecksumBytes), at, "checksum");
  int64_t sum = 0, signed_sum = 0;  // some old programs add the bytes as signed ones
  for (size_t i = 0; i < header.size(); ++i) {
    const bool is_own = i >= kChecksumAt && i < kChecksumAt + kChecksumBytes;
    sum += is_own ? ' ' : header[i];
    signed_sum += is_own ? ' ' : static_cast<int8_t>(header[i]);
  }
  if (expected == sum || expected == signed_sum) return;
  fail(at, fmt::format("the checksum of the header is {}, but its bytes add up to {}: it is damaged, or not a tar "
                       "file",
                       expected, sum));
}

std::string TarReader::read_text(int64_t at, int64_t bytes) {
  if (bytes > kMostNameBytes) fail(at, fmt::format("a name or pax header of {} bytes is too long", with_commas(bytes)));
  std::string text(static_cast<size_t>(bytes), '\0');
  read_(at, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
  return text;
}

/// Applies the records of a pax header to the member that follows it: its name and size.
void TarReader::read_pax(int64_t at, int64_t bytes, TarMember& member, int64_t& size) {
  const std::string text = read_text(at, bytes);
  std::string_view rest = text;
  while (!rest.empty() && rest[0] != '\0') {
    const int64_t here = at + static_cast<int64_t>(text.size() - rest.size());
    size_t length = 0;
    const auto [digits_end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<size_t>(digits_end - rest.data());
    const size_t equals = rest.find('=');
    if (error != std::errc() || length > rest.size() || length <= digits + 1 || rest[digits] != ' ' ||
        rest[length - 1] != '\n' || equals >= length)
      fail(here, "expected a pax record of the form 'length key=value'");
    const std::string_view key = rest.substr(digits + 1, equals - digits - 1);
    const std::string_view value = rest.substr(equals + 1, length - equals - 2);
    if (key == "path") member.name = value;
    if (key == "size") {
      const auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), size);
      if (bad != std::errc() || end != value.data() + value.size() || size < 0)
        fail(here, fmt::format("the pax size: expected digits, found '{}'", printable(shortened(value))));
    }
    if (key.starts_with("GNU.sparse.")) fail(here, "sparse files are not supported");
    rest.remove_prefix(length);
  }
}

bool TarReader::next(TarMember& member) {
  member = {.name = {}, .begin = at_};
  if (at_ == 0) refuse_gzip();  // before its first block: a small archive compresses to less than one
  for (int64_t size = -1;;) {
    const auto header = block(at_);
    if (is_zero(header)) {
      if (at_ != member.begin) fail(at_, "expected the member that the previous headers describe, found the end");
      check_end(at_);
      return false;
    }
    check_checksum(header, at_);
    const int64_t header_at = at_, data_at = at_ + kTarBlock;
    const char type = static_cast<char>(header[kTypeAt]);
    const bool is_about_next = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    int64_t bytes = number(header.subspan(kSizeAt, kSizeBytes), at_, "size");
    if (!is_about_next && size >= 0) bytes = size;
    if (type == '5') bytes = 0;  // For a folder the size is only a limit that it may grow to; a folder has no data.
    if (bytes > file_bytes_ - data_at)
      fail(at_, fmt::format("the header specifies {} bytes of data, but the file has only {} more: it is truncated, "
                            "or the size is wrong; download it again",
                            with_commas(bytes), with_commas(file_bytes_ - data_at)));
    if (!is_about_next && member.name.empty()) member.name = name_of(header);  // the window may move from here on
    if (type == 'x') read_pax(data_at, bytes, member, size);
    if (type == 'L') {
      const std::string name = read_text(data_at, bytes);
      member.name = name.substr(0, name.find('\0'));
    }
    at_ = std::min(data_at + padded(bytes), file_bytes_);  // the last padding may be missing: the next block is, too
    if (is_about_next) continue;
    member.is_file = type == '0' || type == '\0' || type == '7';
    if (!member.is_file && type != '5')
      fail(header_at, fmt::format("'{}' is a member of type '{}'; expected only files and folders, no links, devices "
                                  "or sparse files",
                                  printable(shortened(member.name)), printable(std::string(1, type))));
    member.data_at = data_at;
    member.bytes = bytes;
    return true;
  }
}

/// Requires that the first block of zeros is followed by another block of zeros or by the end of the file, but not by a
/// second archive.
void TarReader::check_end(int64_t at) {
  std::vector<uint8_t> rest(static_cast<size_t>(std::min(kWindowBytes, file_bytes_ - at)));
  read_(at, rest);
  const auto other = std::find_if(rest.begin(), rest.end(), [](uint8_t byte) { return byte != 0; });
  if (other != rest.end())
    fail(at + (other - rest.begin()),
         "data after the end of the archive: the file is damaged or consists of several archives; write a single "
         "archive");
}

}  // namespace trainctl
