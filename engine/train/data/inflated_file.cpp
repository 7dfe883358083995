// Reads a file from its start to its end, and inflates it if it is compressed by gzip or zstd.
#include "engine/train/data/inflated_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/url.h"
#include "engine/train/data/inflation.h"
#include "engine/train/files/input_file.h"

namespace trainctl {

struct InflatedFile::Gzip {
  Gzip(int fd, const std::string&) : file(gzdopen(fd, "rb")) { check(file != nullptr, "gzdopen needs only memory"); }
  ~Gzip() { gzclose(file); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  size_t read(std::span<char> to, const std::string& name) {
    const int count = gzread(file, to.data(), static_cast<unsigned>(to.size()));
    int code = 0;
    const char* text = gzerror(file, &code);
    if (count < 0) throw EnvError(name + ": cannot be read: " + text);
    if (count == 0 && code == Z_BUF_ERROR) throw EnvError(name + ": the gzip data are truncated; get the file again");
    return static_cast<size_t>(count);
  }

  gzFile file;
};

struct InflatedFile::Zstd {
  explicit Zstd(int opened) : fd(opened), stream(ZSTD_createDStream()), packed(ZSTD_DStreamInSize()) {}
  ~Zstd() {
    ZSTD_freeDStream(stream);
    close(fd);
  }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  size_t read(std::span<char> to, const std::string& name) {
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    while (out.pos == 0) {
      if (in.pos == in.size && !fill(name)) {
        if (is_inside) throw EnvError(name + ": the zstd data are truncated; get the file again");
        return 0;
      }
      const size_t left = ZSTD_decompressStream(stream, &out, &in);
      if (ZSTD_isError(left) != 0)
        throw EnvError(name + ": the zstd data are damaged: " + ZSTD_getErrorName(left) + "; get the file again");
      is_inside = left != 0;
    }
    return out.pos;
  }

  bool fill(const std::string& name) {
    ssize_t got = 0;
    do got = ::read(fd, packed.data(), packed.size());
    while (got < 0 && errno == EINTR);
    if (got < 0) throw EnvError(name + ": cannot be read: " + std::strerror(errno));
    in = {packed.data(), static_cast<size_t>(got), 0};
    return got > 0;
  }

  int fd;
  ZSTD_DStream* stream;
  std::vector<char> packed;
  ZSTD_inBuffer in{nullptr, 0, 0};
  bool is_inside = false;  ///< a frame has begun and has not ended
};

namespace {

/// Returns an anonymous file in memory with the bytes of an object in a store, because zlib and zstd read files.
int open_object(const std::string& url) {
  const InputFile object(url);
  const int fd = memfd_create("object", MFD_CLOEXEC);
  std::vector<uint8_t> part;
  constexpr int64_t kAtOnce = int64_t{8} << 20;
  for (int64_t at = 0; fd >= 0 && at < object.bytes(); at += kAtOnce) {
    part.resize(static_cast<size_t>(std::min(kAtOnce, object.bytes() - at)));
    object.read(at, part);
    for (size_t done = 0; done < part.size();) {
      const ssize_t put = pwrite(fd, part.data() + done, part.size() - done, at + static_cast<int64_t>(done));
      if (put < 0 && errno != EINTR)
        throw EnvError(object.path() + ": cannot be kept in memory: " + std::strerror(errno));
      done += put > 0 ? static_cast<size_t>(put) : 0;
    }
  }
  return fd;
}

/// Allocates memory for data that inflate to `bytes`. Throws EnvError if the data cannot inflate to that size.
std::vector<uint8_t> room_for(std::span<const uint8_t> packed, int64_t bytes, const std::string& name) {
  constexpr int64_t kMostBytes = std::numeric_limits<uint32_t>::max();  // zlib counts with 32 bits
  const auto packed_bytes = static_cast<int64_t>(packed.size());
  if (bytes < 0 || bytes > kMostBytes || packed_bytes > kMostBytes || !may_inflate(packed_bytes, bytes))
    throw EnvError(name + ": would inflate to more than 100 times its size; if it is correct, decompress it");
  return std::vector<uint8_t>(static_cast<size_t>(bytes));
}

int open_packed(const std::string& path) {
  if (path == "-") return dup(0);
  return is_url(path) ? open_object(path) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

InflatedFile::InflatedFile(const std::string& path) : name_(path == "-" ? "stdin" : shown_url(path)) {
  const int fd = open_packed(path);
  if (fd < 0) throw EnvError(name_ + ": cannot be read: " + std::strerror(errno));
  if (name_.ends_with(".zst"))
    zstd_ = std::make_unique<Zstd>(fd);
  else
    gzip_ = std::make_unique<Gzip>(fd, name_);
}

InflatedFile::~InflatedFile() = default;

size_t InflatedFile::read(std::span<char> to) { return zstd_ ? zstd_->read(to, name_) : gzip_->read(to, name_); }

bool is_compressed_name(const std::string& path) {
  const std::string name = shown_url(path);
  return name.ends_with(".gz") || name.ends_with(".zst");
}

std::string read_inflated(const std::string& path, int64_t packed_bytes) {
  InflatedFile file(path);
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const size_t count = file.read(buffer)) {
    text.append(buffer.data(), count);
    if (!may_inflate(packed_bytes, static_cast<int64_t>(text.size())))
      throw EnvError(file.name() + ": inflates to more than 100 times its size; if it is correct, decompress it");
  }
  return text;
}

std::vector<uint8_t> inflated_gzip(std::span<const uint8_t> packed, int64_t bytes, const std::string& name) {
  std::vector<uint8_t> out = room_for(packed, bytes, name);
  z_stream stream{};
  constexpr int kGzipOrZlib = 32 + MAX_WBITS;
  check(inflateInit2(&stream, kGzipOrZlib) == Z_OK, "inflateInit2 needs only memory");
  stream.next_in = const_cast<uint8_t*>(packed.data());
  stream.avail_in = static_cast<unsigned>(packed.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<unsigned>(out.size());
  const int code = inflate(&stream, Z_FINISH);
  const bool is_whole = code == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  if (!is_whole) throw EnvError(name + ": the gzip data are damaged, or have another size; get the file again");
  return out;
}

std::vector<uint8_t> inflated_zstd(std::span<const uint8_t> packed, int64_t bytes, const std::string& name) {
  std::vector<uint8_t> out = room_for(packed, bytes, name);
  const size_t got = ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size());
  if (ZSTD_isError(got) != 0 || got != out.size())
    throw EnvError(name + ": the zstd data are damaged: " +
                   (ZSTD_isError(got) != 0 ? ZSTD_getErrorName(got) : "they have a different size than expected") +
                   "; get the file again");
  return out;
}

}  // namespace trainctl
