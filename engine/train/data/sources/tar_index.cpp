// Finds where the files of each sample are in a tar file.
#include "engine/train/data/sources/tar_index.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "engine/base/checked.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/files/disk.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of an index are little-endian");

constexpr char kTarIndexMagic[] = {'t', 'c', 't', 'l', '.', 't', 'a', 'r'};
constexpr int64_t kVersion = 1;
constexpr size_t kWords = 7, kHeadBytes = kWords * 8;
constexpr size_t kMostExtensions = 64;
constexpr int kHeaderBits = 16;
constexpr int64_t kMostHeaderBlocks = (1 << kHeaderBits) - 1;

/// Collects the files of the samples in the order in which they are found.
class TarIndexBuilder {
 public:
  explicit TarIndexBuilder(const std::string& tar) : tar_(tar) {}

  void add(const TarMember& member) {
    if (!member.is_file) return;
    TarName name = split_tar_name(member.name);
    if (name.extension.empty()) return;
    if (files_.empty() || name.stem != stem_) {
      firsts_.push_back(files_.size());
      stem_ = name.stem;
    }
    const uint16_t column = column_of(name.extension, member);
    for (size_t i = firsts_.back(); i < files_.size(); ++i)
      if (files_[i].column == column)
        fail(member, fmt::format("sample '{}' has two .{} files", printable(stem_), printable(name.extension)));
    if (member.bytes > std::numeric_limits<uint32_t>::max())
      fail(member, fmt::format("has {} bytes, but a file of a sample can have at most 4,294,967,295",
                               with_commas(member.bytes)));
    const int64_t blocks = (member.data_at - member.begin) / kTarBlock;
    if (blocks > kMostHeaderBlocks) fail(member, "has more than 32 MiB of headers");
    files_.push_back({static_cast<uint64_t>(member.data_at / kTarBlock) << kHeaderBits | static_cast<uint64_t>(blocks),
                      static_cast<uint32_t>(member.bytes), column});
  }

  std::vector<uint8_t> finish(const TarStamp& stamp) {
    const size_t samples = firsts_.size(), columns = columns_.size();
    std::string text;
    std::vector<size_t> place(columns);  // in the order of the names: the index of each column as it was found
    for (size_t rank = 0; const auto& [extension, column] : columns_) {
      text += extension + '\0';
      place[column] = rank++;
    }
    text.resize((text.size() + 7) / 8 * 8, '\0');
    std::vector<uint8_t> bytes(kHeadBytes + text.size() + samples * columns * 12);
    std::memcpy(bytes.data(), kTarIndexMagic, sizeof kTarIndexMagic);
    const uint64_t words[] = {static_cast<uint64_t>(kVersion),
                              static_cast<uint64_t>(stamp.bytes),
                              static_cast<uint64_t>(stamp.seconds),
                              samples,
                              columns,
                              text.size()};
    std::memcpy(bytes.data() + sizeof kTarIndexMagic, words, sizeof words);
    std::copy(text.begin(), text.end(), bytes.begin() + kHeadBytes);
    uint8_t* places = bytes.data() + kHeadBytes + text.size();
    uint8_t* sizes = places + samples * columns * 8;
    for (size_t s = 0; s < samples; ++s)
      for (size_t i = firsts_[s]; i < (s + 1 < samples ? firsts_[s + 1] : files_.size()); ++i) {
        const size_t cell = s * columns + place[files_[i].column];
        std::memcpy(places + cell * 8, &files_[i].place, 8);
        std::memcpy(sizes + cell * 4, &files_[i].bytes, 4);
      }
    return bytes;
  }

 private:
  struct File {
    uint64_t place;
    uint32_t bytes;
    uint16_t column;
  };

  [[noreturn]] void fail(const TarMember& member, const std::string& what) const {
    throw EnvError(
        fmt::format("{}: byte {}: '{}': {}", tar_, with_commas(member.begin), printable(shortened(member.name)), what));
  }

  uint16_t column_of(const std::string& extension, const TarMember& member) {
    const auto [found, is_new] = columns_.emplace(extension, static_cast<uint16_t>(columns_.size()));
    if (is_new && columns_.size() > kMostExtensions)
      fail(member,
           fmt::format("the files have more than {} different extensions, so they are not samples", kMostExtensions));
    return found->second;
  }

  const std::string& tar_;
  std::string stem_;
  std::map<std::string, uint16_t> columns_;  ///< by extension, numbered as they are found
  std::vector<File> files_;
  std::vector<size_t> firsts_;  ///< index in files_ of the first file of each sample
};

}  // namespace

TarStamp tar_stamp(const std::string& tar) {
  if (is_url(tar)) return {InputFile(tar).bytes(), kUnknownTime};
  struct stat status {};
  if (stat(tar.c_str(), &status) != 0)
    throw EnvError(fmt::format("{}: cannot be read: {}", tar, describe_errno(errno)));
  return {status.st_size, status.st_mtim.tv_sec};
}

TarName split_tar_name(const std::string& name) {
  const size_t folder = name.rfind('/') + 1;  // 0 if there is none
  const size_t dot = name.find('.', folder);
  if (dot == std::string::npos || dot == folder || name.compare(folder, 2, "__") == 0) return {name, {}};
  return {name.substr(0, dot), lower_case(name.substr(dot + 1))};
}

TarIndex::TarIndex(std::span<const uint8_t> bytes, const TarStamp& stamp, std::string file)
    : bytes_(bytes), file_(std::move(file)) {
  if (bytes.size() < kHeadBytes || std::memcmp(bytes.data(), kTarIndexMagic, sizeof kTarIndexMagic) != 0 ||
      word(1) != kVersion)
    fail("is not an index of this version");
  if (const TarStamp of{word(2), stamp.seconds == kUnknownTime ? kUnknownTime : word(3)}; of != stamp)
    fail(
        fmt::format("belongs to a tar file of {} bytes, last modified at second {}, but the tar file has {} bytes "
                    "and was modified at {}",
                    with_commas(of.bytes), of.seconds, with_commas(stamp.bytes), stamp.seconds));
  tar_bytes_ = stamp.bytes;
  samples_ = word(4);
  const int64_t columns = word(5), text_bytes = word(6), most = static_cast<int64_t>(bytes.size());
  if (samples_ < 0 || columns < 0 || columns > static_cast<int64_t>(kMostExtensions) || text_bytes < 0 ||
      text_bytes > most ||
      capped_sum(static_cast<int64_t>(kHeadBytes) + text_bytes,
                 capped_product(capped_product(samples_, columns), 12)) != most)
    fail(fmt::format("has {} bytes, which does not match {} samples with {} files each", with_commas(most),
                     with_commas(samples_), columns));
  std::string text(reinterpret_cast<const char*>(bytes.data()) + kHeadBytes, static_cast<size_t>(text_bytes));
  for (size_t at = 0; extensions_.size() < static_cast<size_t>(columns);) {
    const size_t end = text.find('\0', at);
    if (end == std::string::npos) fail("lists fewer extensions than files per sample");
    extensions_.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  places_at_ = kHeadBytes + text.size();
  sizes_at_ = places_at_ + static_cast<size_t>(samples_ * columns) * 8;
}

void TarIndex::fail(const std::string& what) const {
  throw EnvError(fmt::format("{}: {}; write it again: trainctl data index", file_, what));
}

int64_t TarIndex::word(size_t at) const {
  int64_t value = 0;
  std::memcpy(&value, bytes_.data() + at * 8, 8);
  return value;
}

std::optional<TarPart> TarIndex::part(int64_t sample, size_t extension) const {
  check(sample >= 0 && sample < samples_ && extension < extensions_.size(), "a sample and an extension of the index");
  const size_t cell = static_cast<size_t>(sample) * extensions_.size() + extension;
  uint64_t place = 0;
  uint32_t bytes = 0;
  std::memcpy(&place, bytes_.data() + places_at_ + cell * 8, 8);
  std::memcpy(&bytes, bytes_.data() + sizes_at_ + cell * 4, 4);
  if (place == 0) return {};
  const uint64_t block = place >> kHeaderBits, headers = place & kMostHeaderBlocks;
  const auto blocks = static_cast<uint64_t>(tar_bytes_ / kTarBlock);
  if (block > blocks || headers > block || bytes > tar_bytes_ - static_cast<int64_t>(block) * kTarBlock)
    fail(fmt::format("lists sample {} with {} bytes at byte {}, which is beyond the end of the tar file",
                     with_commas(sample), with_commas(bytes), block * kTarBlock));
  const int64_t data_at = static_cast<int64_t>(block) * kTarBlock;
  return TarPart{data_at - static_cast<int64_t>(headers) * kTarBlock, data_at, bytes};
}

std::vector<uint8_t> build_tar_index(TarReader reader, const TarStamp& stamp, const std::string& tar) {
  TarIndexBuilder builder(tar);
  for (TarMember member; reader.next(member);) builder.add(member);
  return builder.finish(stamp);
}

std::string tar_index_path(const std::string& tar) { return tar + ".idx"; }

int64_t write_tar_index(const std::string& tar, const std::string& out) {
  const TarStamp stamp = tar_stamp(tar);
  const InputFile file(tar);
  TarReader reader([&](int64_t at, std::span<uint8_t> to) { file.read(at, to); }, file.bytes(), tar);
  const std::vector<uint8_t> bytes = build_tar_index(std::move(reader), stamp, tar);
  const std::string part = fmt::format("{}.{}.part", out, getpid());
  try {
    DiskFile written(part);
    written.write(0, bytes);
    written.sync_and_close();
    if (real_disk().rename(part, out) != 0)
      throw EnvError(fmt::format("cannot write {}: {}", out, describe_errno(errno)));
  } catch (...) {
    real_disk().unlink(part);
    throw;
  }
  return TarIndex(bytes, stamp, out).samples();
}

}  // namespace trainctl
