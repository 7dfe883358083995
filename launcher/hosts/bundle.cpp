// This program in the form in which it is copied to hosts where it is not installed: the binary, its loaded shared
// libraries, and the dynamic loader.
#include "launcher/hosts/bundle.h"

#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/put_all.h"
#include "engine/base/sha256.h"
#include "launcher/own_program.h"

namespace trainctl::hosts {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 512;

int add_library(dl_phdr_info* info, size_t, void* files) {
  const std::string path = info->dlpi_name;
  if (path.empty() || path.front() != '/') return 0;  // the binary itself, and the kernel's vdso
  static_cast<std::vector<Bundle::File>*>(files)->push_back({path, "lib/" + fs::path(path).filename().string()});
  return 0;
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string digest_of(const std::vector<Bundle::File>& files) {
  Sha256 digest;
  for (const Bundle::File& file : files) {
    digest.add_text(file.name);
    digest.add_file(file.path);
  }
  return digest.hex();
}

/// The header of ustar (POSIX.1-1988): numbers are octal digits, `name` is shorter than 100 bytes.
std::string tar_header(const std::string& name, int64_t size) {
  std::string header(kBlock, '\0');
  const auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  const auto octal = [](int64_t value, int digits) {
    char text[32];
    std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
    return std::string(text);
  };
  put(0, name);
  put(100, octal(0755, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  put(124, octal(size, 11));
  put(136, octal(0, 11));
  put(148, "        ");
  put(156, "0");
  put(257, std::string("ustar\0"
                       "00",
                       8));
  int64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + std::string("\0 ", 2));
  return header;
}

bool write_file(const Bundle::File& file, int fd) {
  const Descriptor descriptor(file.path);
  struct stat info {};
  if (descriptor.get() < 0 || fstat(descriptor.get(), &info) != 0) return false;
  if (!put_all(fd, tar_header(file.name, info.st_size))) return false;
  std::vector<char> buffer(1 << 20);
  int64_t left = info.st_size;
  while (left > 0) {
    const ssize_t got = read(descriptor.get(), buffer.data(), std::min(buffer.size(), static_cast<size_t>(left)));
    if (got <= 0 || !put_all(fd, {buffer.data(), static_cast<size_t>(got)})) return false;
    left -= got;
  }
  const size_t filled = static_cast<size_t>(info.st_size) % kBlock;
  return filled == 0 || put_all(fd, std::string(kBlock - filled, '\0'));
}

}  // namespace

Bundle bundle_of_this_program() {
  Bundle bundle;
  bundle.files.push_back({own_program(), "bin/trainctl"});
  dl_iterate_phdr(add_library, &bundle.files);
  std::sort(bundle.files.begin(), bundle.files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const Bundle::File& file : bundle.files) {
    const std::string name = fs::path(file.path).filename();
    if (name.starts_with("ld-linux") || name.starts_with("ld-musl")) bundle.loader = name;
    if (file.name.size() >= 100)
      throw EnvError(file.path + " cannot be copied to other hosts because its name is too long");
  }
  if (bundle.loader.empty())
    throw EnvError("this program was linked without a dynamic loader and cannot be copied to other hosts");
  utsname system{};
  uname(&system);
  bundle.machine = system.machine;
  bundle.name = digest_of(bundle.files);
  return bundle;
}

bool write_tar(const Bundle& bundle, int fd) {
  for (const Bundle::File& file : bundle.files)
    if (!write_file(file, fd)) return false;
  return put_all(fd, std::string(2 * kBlock, '\0'));
}

}  // namespace trainctl::hosts
