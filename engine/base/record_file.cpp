// A file that grows by whole records while it is read by others: lines of JSON, records of TensorBoard.
#include "engine/base/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/base/machine_limits.h"

namespace trainctl {

RecordFile::RecordFile(std::string path, Begin begin) : path_(std::move(path)), begin_(begin) { open(); }

RecordFile::~RecordFile() { close(); }

RecordFile::RecordFile(RecordFile&& other) noexcept { *this = std::move(other); }

RecordFile& RecordFile::operator=(RecordFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  path_ = std::exchange(other.path_, {});
  begin_ = other.begin_;
  fd_ = std::exchange(other.fd_, -1);
  kept_ = std::exchange(other.kept_, {});
  kept_bytes_ = std::exchange(other.kept_bytes_, 0);
  lost_ = std::exchange(other.lost_, 0);
  problem_ = std::exchange(other.problem_, {});
  return *this;
}

void RecordFile::close() {
  if (!kept_.empty()) flush();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool RecordFile::open() {
  if (fd_ >= 0) return true;
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (begin_ == Begin::empty ? O_TRUNC : 0);
  fd_ = ::open(path_.c_str(), how, 0666);
  if (fd_ < 0) fail(errno);
  return fd_ >= 0;
}

void RecordFile::fail(int error) { problem_ = describe_errno(error); }

bool RecordFile::write(std::string_view record) {
  if (!is_open()) return false;
  kept_.emplace_back(record);
  kept_bytes_ += record.size();
  if (flush()) return true;
  for (; kept_bytes_ > kMostKeptBytes && kept_.size() > 1; ++lost_) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
  return false;
}

bool RecordFile::flush() {
  if (!open()) return false;
  while (!kept_.empty()) {
    if (!put(kept_.front())) return false;
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
  problem_.clear();
  return true;
}

/// All of it, or nothing.
bool RecordFile::put(std::string_view record) {
  struct stat before {};
  if (fstat(fd_, &before) != 0) return fail(errno), false;
  for (std::string_view left = record; !left.empty();) {
    const ssize_t put = ::write(fd_, left.data(), left.size());
    if (put < 0 && errno == EINTR) continue;
    if (put > 0) {
      left.remove_prefix(static_cast<size_t>(put));
      continue;
    }
    fail(put == 0 ? ENOSPC : errno);
    const bool is_partial = left.size() < record.size();
    if (is_partial && ftruncate(fd_, before.st_size) != 0) fail(errno);  // a reader would find half a record
    return false;
  }
  return true;
}

}  // namespace trainctl
