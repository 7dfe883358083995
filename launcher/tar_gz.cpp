// Writes archives of log folders.
#include "launcher/tar_gz.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/machine_limits.h"

namespace trainctl {
namespace {

constexpr const char* kLevel = "4";  // low, since training needs the CPU at the same time
constexpr int kBytesPerWrite = 1 << 17;

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

/// Warnings are ignored: libarchive cannot convert a name from this locale to UTF-8 and keeps its bytes, as we want.
bool failed(la_ssize_t result) { return result < ARCHIVE_WARN; }

}  // namespace

TarGz::TarGz(std::string path)
    : path_(std::move(path)),
      archive_(archive_write_new(), archive_write_free),
      entry_(archive_entry_new(), archive_entry_free) {
  check(archive_ && entry_, "libarchive has memory for an archive");
  // A file without a name disappears even if we are killed.
  fd_ = open(folder_of(path_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    temporary_ = path_ + ".XXXXXX";
    fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
    if (fd_ < 0) temporary_.clear();
  }
  if (fd_ < 0) fail(errno);
  archive* out = archive_.get();
  const bool ready = !failed(archive_write_set_format_pax_restricted(out)) &&
                     !failed(archive_write_add_filter_gzip(out)) &&
                     !failed(archive_write_set_filter_option(out, "gzip", "compression-level", kLevel)) &&
                     !failed(archive_write_set_bytes_per_block(out, kBytesPerWrite)) &&
                     !failed(archive_write_set_bytes_in_last_block(out, 1)) && !failed(archive_write_open_fd(out, fd_));
  if (!ready) {
    const int error = archive_errno(out);
    close(fd_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
    fail(error);
  }
}

TarGz::~TarGz() {
  if (archive_) archive_write_fail(archive_.get());  // prevents further writes
  archive_.reset();
  close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void TarGz::fail(int error) { throw EnvError("cannot write " + path_ + ": " + describe_errno(error)); }

void TarGz::put(const void* bytes, size_t size) {
  if (size > 0 && failed(archive_write_data(archive_.get(), bytes, size))) fail(archive_errno(archive_.get()));
}

void TarGz::header(const std::string& name, int64_t size, int64_t seconds) {
  archive_entry* entry = archive_entry_clear(entry_.get());
  archive_entry_set_pathname(entry, name.c_str());
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_size(entry, size);
  archive_entry_set_mtime(entry, std::max<int64_t>(seconds, 0), 0);
  if (failed(archive_write_header(archive_.get(), entry))) fail(archive_errno(archive_.get()));
}

void TarGz::add_text(const std::string& name, std::string_view text) {
  header(name, static_cast<int64_t>(text.size()), std::time(nullptr));
  put(text.data(), text.size());
}

void TarGz::add_file(const std::string& name, const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0 && errno == ENOENT) return;
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) throw EnvError("cannot read " + path + ": " + describe_errno(errno));
  try {
    header(name, status.st_size, status.st_mtim.tv_sec);
    std::string block(1 << 18, '\0');
    for (int64_t left = status.st_size; left > 0;) {
      const ssize_t got = read(file, block.data(), std::min(block.size(), static_cast<size_t>(left)));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;  // it was truncated: libarchive pads the entry with zeros
      put(block.data(), static_cast<size_t>(got));
      left -= got;
    }
  } catch (...) {
    close(file);
    throw;
  }
  close(file);
}

int64_t TarGz::finish() {
  if (failed(archive_write_close(archive_.get()))) fail(archive_errno(archive_.get()));
  archive_.reset();
  if (fsync(fd_) != 0) fail(errno);
  if (temporary_.empty()) {
    temporary_ = path_ + ".XXXXXX";
    const int placeholder = mkostemp(temporary_.data(), O_CLOEXEC);
    if (placeholder < 0) fail(errno);
    close(placeholder);
    unlink(temporary_.c_str());  // frees the unused name that mkostemp found, for the link below
    const std::string own = "/proc/self/fd/" + std::to_string(fd_);
    if (linkat(AT_FDCWD, own.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0) fail(errno);
  }
  struct stat status {};
  if (rename(temporary_.c_str(), path_.c_str()) != 0 || fstat(fd_, &status) != 0) fail(errno);
  temporary_.clear();
  return status.st_size;
}

}  // namespace trainctl
