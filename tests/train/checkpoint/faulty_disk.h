// A disk that fails or dies at a chosen call, and the states in which a loss of power may leave it.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/train/files/disk.h"

namespace trainctl {

/// Thrown in place of the call at which the process dies.
struct Death {};

/// Executes all calls but fsync, unless its fields say otherwise, and remembers them.
class FaultyDisk : public Disk {
 public:
  int fails_at = -1;  ///< this call, counted from 0, returns -1
  int error = 5;      ///< with this errno
  int dies_at = -1;   ///< this call and all after it throw Death
  std::function<void()> before_each;

  int calls() const { return calls_; }
  const std::string& failed() const { return failed_; }  ///< description of the failed call

  int open(const std::string& path, int flags) override;
  ssize_t pwrite(int fd, std::span<const uint8_t> bytes, int64_t at) override;
  int fsync(int fd) override;
  int close(int fd) override;
  int mkdir(const std::string& path) override;
  int rename(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int rmdir(const std::string& path) override;

  /// Makes `to` a state in which `from`, written through this disk, may be after a loss of power. Everything that was
  /// synced is there: data by an fsync of their file, names by an fsync of their directory. Chance decides whether
  /// anything else is there.
  void lose_power(const std::string& from, const std::string& to, std::mt19937& random) const;

 private:
  enum class Kind { create, write, sync, mkdir, rename, unlink, rmdir };
  struct Op {
    Kind kind;
    std::string path, to;
    std::vector<uint8_t> bytes;
    int64_t at = 0;
  };
  bool proceeds(const std::string& what);
  bool is_durable(size_t op) const;

  int calls_ = 0;
  std::string failed_;
  std::map<int, std::string> paths_;  ///< paths of open descriptors
  std::vector<Op> ops_;
};

}  // namespace trainctl
