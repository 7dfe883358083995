// Errors of system calls in words.
#include "engine/base/machine_limits.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <system_error>

namespace trainctl {
namespace {

std::string value_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

/// Limit on the number of processes in the innermost control group that this process sees; empty: no limit.
std::string pids_max() {
  for (const char* path : {"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"}) {
    std::string text;
    if (std::ifstream(path) >> text && text != "max") return text;
  }
  return "";
}

std::string processes_limit() {
  const std::string group = pids_max(), space = value_of(RLIMIT_AS), data = value_of(RLIMIT_DATA);
  return "the limit on processes and threads is reached; the limit of this user is " + value_of(RLIMIT_NPROC) +
         " (ulimit -u)" +
         (group.empty() ? ", and a container has its own limit (pids.max)" : ", that of this container is " + group) +
         (space == "unlimited"
              ? ""
              : "; threads also need address space, which is limited to " + space + " bytes (ulimit -v)") +
         (data == "unlimited" ? "" : "; threads also need memory, which is limited to " + data + " bytes (ulimit -d)") +
         "; raise the limit, or use fewer ranks or threads";
}

/// Empty: the error is not a limit.
std::string limit_of(int error) {
  switch (error) {
    case EAGAIN:
      return processes_limit();
    case EMFILE:
      return "the limit of " + value_of(RLIMIT_NOFILE) + " open files per process is reached; raise it (ulimit -n)";
    case ENFILE:
      return "the limit of open files on this machine is reached; raise fs.file-max (sysctl), or stop other programs";
    case EFBIG:
      return "the size of files is limited to " + value_of(RLIMIT_FSIZE) + " bytes; raise the limit (ulimit -f)";
    case ENOMEM:
      return "the address space of this process is limited to " + value_of(RLIMIT_AS) +
             " bytes (ulimit -v), and a container is limited by memory.max";
    case EDQUOT:
      return "the disk quota of this user is used up; free some space";
    default:
      return "";
  }
}

}  // namespace

std::string describe_errno(int error) {
  const std::string limit = limit_of(error);
  return std::strerror(error) + (limit.empty() ? "" : ": " + limit);
}

std::optional<std::string> machine_refusal() {
  try {
    throw;
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string path = error.path1().empty() ? "" : error.path1().string() + ": ";
    return path + describe_errno(error.code().value());
  } catch (const std::system_error& error) {
    if (error.code().category() != std::generic_category() && error.code().category() != std::system_category())
      return std::nullopt;
    return describe_errno(error.code().value());
  } catch (const std::bad_alloc&) {
    return "this host does not have enough memory";
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace trainctl
