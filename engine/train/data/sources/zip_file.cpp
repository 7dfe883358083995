// A zip file, such as NumPy writes with savez. libzip reads its directory, inflates members and verifies checksums.
// libzip reads through an InputFile, whose errors name the file and whose reads are watched (FileWait).
#include "engine/train/data/sources/zip_file.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/train/data/inflation.h"

namespace trainctl {
namespace {

constexpr int64_t kMostZipInflation = 1032;  ///< deflate's limit: 258 bytes from 2 bits
constexpr int64_t kMostInflated = int64_t{64} << 30;
constexpr int64_t kVerifiedAtOnce = int64_t{4} << 20;

std::string shown_name(const ZipMember& member) { return printable(shortened(member.name)); }

[[noreturn]] void fail_in_member(const std::string& file, const ZipMember& member, const std::string& what) {
  throw EnvError(fmt::format("{}: '{}': {}", file, shown_name(member), what));
}

std::string text_of(zip_error_t* error) {
  if (zip_error_code_zip(error) == ZIP_ER_CRC) return "its content does not match its checksum";
  return zip_error_strerror(error);
}

/// A zip_error_t that is freed at the end of its scope.
struct ZipError {
  zip_error_t error{};
  ZipError() { zip_error_init(&error); }
  ~ZipError() { zip_error_fini(&error); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
};

/// The file that libzip reads, and a position in it.
struct ZipInput {
  const InputFile& file;
  int64_t at = 0;
  int64_t last_read_at = 0;      ///< where the last read began
  std::exception_ptr failure{};  ///< the error of a read
  ZipError error{};
};

zip_int64_t read_input(ZipInput& input, void* data, zip_uint64_t bytes) {
  const int64_t count = std::min(static_cast<int64_t>(bytes), input.file.bytes() - input.at);
  input.last_read_at = input.at;
  try {
    input.file.read(input.at, {static_cast<uint8_t*>(data), static_cast<size_t>(count)});
  } catch (...) {  // must not pass through libzip
    input.failure = std::current_exception();
    zip_error_set(&input.error.error, ZIP_ER_READ, 0);
    return -1;
  }
  input.at += count;
  return count;
}

zip_int64_t seek_input(ZipInput& input, void* data, zip_uint64_t bytes) {
  const zip_int64_t to =
      zip_source_seek_compute_offset(static_cast<zip_uint64_t>(input.at), static_cast<zip_uint64_t>(input.file.bytes()),
                                     data, bytes, &input.error.error);
  if (to < 0) return -1;
  input.at = to;
  return 0;
}

zip_int64_t stat_input(const ZipInput& input, void* data) {
  auto* stat = static_cast<zip_stat_t*>(data);
  zip_stat_init(stat);
  stat->size = static_cast<zip_uint64_t>(input.file.bytes());
  stat->valid = ZIP_STAT_SIZE;
  return sizeof(*stat);
}

/// The zip_source_callback of a ZipInput.
zip_int64_t input_callback(void* state, void* data, zip_uint64_t bytes, zip_source_cmd_t command) {
  ZipInput& input = *static_cast<ZipInput*>(state);
  switch (command) {
    case ZIP_SOURCE_OPEN:
      input.at = 0;
      return 0;
    case ZIP_SOURCE_READ:
      return read_input(input, data, bytes);
    case ZIP_SOURCE_SEEK:
      return seek_input(input, data, bytes);
    case ZIP_SOURCE_TELL:
      return input.at;
    case ZIP_SOURCE_STAT:
      return stat_input(input, data);
    case ZIP_SOURCE_ERROR:
      return zip_error_to_data(&input.error.error, data, bytes);
    case ZIP_SOURCE_SUPPORTS:
      return ZIP_SOURCE_SUPPORTS_SEEKABLE | ZIP_SOURCE_MAKE_COMMAND_BITMASK(ZIP_SOURCE_ACCEPT_EMPTY);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
    case ZIP_SOURCE_ACCEPT_EMPTY:  // an empty file is not a zip file
      return 0;
    default:
      zip_error_set(&input.error.error, ZIP_ER_OPNOTSUPP, 0);
      return -1;
  }
}

void require_supported(const zip_stat_t& stat, const ZipMember& member, const InputFile& file) {
  if (stat.encryption_method != ZIP_EM_NONE) fail_in_member(file.path(), member, "is encrypted");
  if (stat.comp_method != ZIP_CM_STORE && stat.comp_method != ZIP_CM_DEFLATE)
    fail_in_member(file.path(), member,
                   fmt::format("is compressed with method {}; expected 0 (stored) or 8 (deflated)", stat.comp_method));
  const bool possible = member.is_deflated ? member.bytes >= 0 && member.bytes <= kMostInflated &&
                                                 member.bytes / kMostZipInflation <= member.packed_bytes
                                           : member.bytes == member.packed_bytes;
  if (!possible || member.packed_bytes < 0 || member.packed_bytes > file.bytes())
    fail_in_member(file.path(), member,
                   fmt::format("{} bytes, compressed to {}, are not possible", with_commas(member.bytes),
                               with_commas(member.packed_bytes)));
}

}  // namespace

struct ZipFile::Archive {
  explicit Archive(const InputFile& file) : input{file} {
    ZipError error;
    zip_source_t* source = zip_source_function_create(input_callback, &input, &error.error);
    if (source != nullptr) open = zip_open_from_source(source, ZIP_RDONLY, &error.error);
    if (open != nullptr) return;
    if (source != nullptr) zip_source_free(source);
    if (input.failure) std::rethrow_exception(input.failure);
    throw EnvError(
        fmt::format("{}: cannot be read as a zip file: {}; it is truncated, damaged, or not a zip file; "
                    "download it again",
                    file.path(), text_of(&error.error)));
  }
  ~Archive() { zip_discard(open); }  // frees the source
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  [[noreturn]] void fail(const ZipMember& member, zip_error_t* error) {
    if (input.failure) std::rethrow_exception(input.failure);
    fail_in_member(input.file.path(), member, text_of(error) + "; download the file again");
  }

  ZipInput input;
  zip_t* open = nullptr;
};

namespace {

/// A member that is being read.
class OpenMember {
 public:
  OpenMember(zip_t* archive, const ZipMember& member) : open_(zip_fopen_index(archive, member.index, 0)) {}
  ~OpenMember() {
    if (open_ != nullptr) zip_fclose(open_);
  }
  OpenMember(const OpenMember&) = delete;
  OpenMember& operator=(const OpenMember&) = delete;

  bool is_open() const { return open_ != nullptr; }
  int64_t read(uint8_t* to, int64_t bytes) { return zip_fread(open_, to, static_cast<zip_uint64_t>(bytes)); }
  zip_error_t* error() { return zip_file_get_error(open_); }

 private:
  zip_file_t* open_;
};

}  // namespace

ZipFile::ZipFile(const InputFile& file) : file_(file), archive_(std::make_unique<Archive>(file)) {
  const auto count = static_cast<zip_uint64_t>(zip_get_num_entries(archive_->open, 0));
  for (zip_uint64_t i = 0; i < count; ++i) {
    zip_stat_t stat;
    if (zip_stat_index(archive_->open, i, ZIP_FL_ENC_RAW, &stat) != 0)
      throw EnvError(fmt::format("{}: {}; download the file again", file.path(), zip_strerror(archive_->open)));
    members_.push_back({stat.name, stat.comp_method == ZIP_CM_DEFLATE, static_cast<int64_t>(stat.comp_size),
                        static_cast<int64_t>(stat.size), i});
    require_supported(stat, members_.back(), file);
  }
}

ZipFile::~ZipFile() = default;

int64_t ZipFile::data_at(const ZipMember& member) {
  check(!member.is_deflated, "only the bytes of a stored member are in the file as they are");
  if (member.bytes == 0) return 0;
  OpenMember open(archive_->open, member);
  if (!open.is_open()) archive_->fail(member, zip_get_error(archive_->open));
  uint8_t first = 0;
  if (open.read(&first, 1) != 1) archive_->fail(member, open.error());
  const int64_t at = archive_->input.last_read_at;  // libzip does not state it otherwise
  if (member.bytes > file_.bytes() - at) fail_in_member(file_.path(), member, "extends beyond the end of the file");
  return at;
}

std::vector<uint8_t> ZipFile::read(const ZipMember& member) {
  require_may_inflate({&member, 1}, member.packed_bytes, file_.path());
  std::vector<uint8_t> bytes(static_cast<size_t>(member.bytes));
  read_to_end(member, bytes);
  return bytes;
}

void ZipFile::verify(const ZipMember& member) {
  require_may_inflate({&member, 1}, member.packed_bytes, file_.path());
  std::vector<uint8_t> buffer(static_cast<size_t>(std::min(kVerifiedAtOnce, member.bytes)));
  read_to_end(member, buffer);
}

void ZipFile::read_to_end(const ZipMember& member, std::span<uint8_t> buffer) {
  OpenMember open(archive_->open, member);
  if (!open.is_open()) archive_->fail(member, zip_get_error(archive_->open));
  const auto size = static_cast<int64_t>(buffer.size());
  int64_t done = 0;
  while (done < member.bytes) {
    const int64_t at = done % size;
    const int64_t got = open.read(buffer.data() + at, std::min(size - at, member.bytes - done));
    if (got < 0) archive_->fail(member, open.error());
    if (got == 0)
      fail_in_member(file_.path(), member,
                     fmt::format("expected {} bytes, found {}; download the file again", with_commas(member.bytes),
                                 with_commas(done)));
    done += got;
  }
  uint8_t more = 0;  // libzip compares the checksum when it reaches the end
  const int64_t got = open.read(&more, 1);
  if (got < 0) archive_->fail(member, open.error());
  if (got > 0)
    fail_in_member(file_.path(), member,
                   fmt::format("has more than {} bytes; download the file again", with_commas(member.bytes)));
}

void require_may_inflate(std::span<const ZipMember> members, int64_t file_bytes, const std::string& file) {
  const ZipMember* largest = nullptr;
  int64_t packed = 0, bytes = 0, count = 0;
  const auto saturated = [](int64_t a, int64_t b) { return a > std::numeric_limits<int64_t>::max() - b ? a : a + b; };
  for (const ZipMember& member : members) {
    if (!member.is_deflated) continue;
    ++count;
    packed = saturated(packed, member.packed_bytes);
    bytes = saturated(bytes, member.bytes);
    if (largest == nullptr || member.bytes > largest->bytes) largest = &member;
  }
  packed = std::min(packed, file_bytes);
  if (may_inflate(packed, bytes)) return;
  throw EnvError(fmt::format(
      "{}: '{}'{}: {} bytes would inflate to {}, more than {} times as much, which indicates a damaged or malicious "
      "file; if the file is valid, store it uncompressed, as np.savez does",
      file, shown_name(*largest), count > 1 ? fmt::format(" and {} more", count - 1) : "", with_commas(packed),
      format_bytes(bytes), kMostInflationOfLarge));
}

}  // namespace trainctl
