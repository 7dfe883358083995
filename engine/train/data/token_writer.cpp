// Writes a token file atomically. The tokens go to `<path>.<pid>.part`, which then gets its name in one step.
#include "engine/train/data/token_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"

namespace trainctl {
namespace {

[[noreturn]] void exists(const std::string& path) {
  throw EnvError(path + " already exists; replace it with --force, or choose another name with -o");
}

}  // namespace

TokenWriter::TokenWriter(std::string path, TokenType type, bool header, bool replace)
    : path_(std::move(path)),
      part_(fmt::format("{}.{}.part", path_, getpid())),
      type_(type),
      header_(header),
      replace_(replace) {
  std::error_code ignored;
  if (!replace_ && std::filesystem::exists(path_, ignored)) exists(path_);
  if (std::filesystem::is_directory(path_, ignored)) throw EnvError("cannot write " + path_ + ": it is a folder");
  fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot write");
  try {
    if (header_) write(token_header(type_, 0).data(), kTokenHeaderBytes);
  } catch (...) {
    close(fd_);
    unlink(part_.c_str());
    throw;
  }
}

TokenWriter::~TokenWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(part_.c_str());
}

void TokenWriter::fail(const char* what) const {
  throw EnvError(fmt::format("{} {}: {}", what, path_, describe_errno(errno)));
}

void TokenWriter::write(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write");
    from += written;
    bytes -= static_cast<size_t>(written);
  }
}

void TokenWriter::add_count(size_t tokens) {
  count_ += static_cast<int64_t>(tokens);
  if (header_ && count_ > std::numeric_limits<int32_t>::max())
    throw EnvError(
        "the llm.c format supports at most 2,147,483,647 tokens per file; write several files, or use "
        "--format raw");
}

void TokenWriter::write_bytes(std::span<const uint8_t> bytes) {
  check(type_ == TokenType::u16, "bytes are written as uint16 tokens");
  add_count(bytes.size());
  tokens_.assign(bytes.begin(), bytes.end());
  write(tokens_.data(), tokens_.size() * sizeof(uint16_t));
}

void TokenWriter::write_tokens(std::span<const int32_t> tokens) {
  add_count(tokens.size());
  if (type_ == TokenType::i32) return write(tokens.data(), tokens.size_bytes());
  tokens_.resize(tokens.size());
  std::transform(tokens.begin(), tokens.end(), tokens_.begin(), [](int32_t t) { return static_cast<uint16_t>(t); });
  write(tokens_.data(), tokens_.size() * sizeof(uint16_t));
}

void TokenWriter::finish() {
  if (header_) {
    const auto header = token_header(type_, count_);
    if (pwrite(fd_, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size())) fail("cannot write");
  }
  if (fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) fail("cannot write");
  if (replace_) {
    if (rename(part_.c_str(), path_.c_str()) != 0) fail("cannot write");
  } else {
    if (link(part_.c_str(), path_.c_str()) != 0) {  // unlike rename it replaces nothing
      if (errno == EEXIST) exists(path_);
      fail("cannot write");
    }
    unlink(part_.c_str());
  }
  close(std::exchange(fd_, -1));
}

}  // namespace trainctl
